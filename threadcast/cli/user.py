"""Who runs a command, for the history of what it changes."""

from __future__ import annotations

import getpass


def user() -> str:
    """ "user NAME" by the login name of this process; the number of the user where it has none."""
    try:
        return f"user {getpass.getuser()}"
    except (OSError, KeyError):  # a container's user without an entry in the password file
        import os

        return f"user {os.getuid()}"
