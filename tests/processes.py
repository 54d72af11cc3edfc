"""The processes that another one has started, as the kernel says; one may end at any moment of a look."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def command_of(process: int) -> bytes:
    """The command of a process, its words apart by zero bytes; nothing where it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def children_of(process: int) -> list[int]:
    """The process ids of the children that the main thread of a process has started and not yet waited for."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def own_children(name: str) -> list[int]:
    """The process ids of this process's children in whose command `name` is."""
    return [child for child in children_of(os.getpid()) if name.encode() in command_of(child)]
