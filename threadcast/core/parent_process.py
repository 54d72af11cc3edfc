"""A process that ends with the one that started it, however that ends."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent() -> None:
    """Have this process killed when the thread that started it ends, by `kill -9` too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
