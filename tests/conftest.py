"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_sessionstart() -> None:
    """Let Ctrl-C reach the tests that send it: shells start what runs in the background with it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
