"""Waiting for what happens beside a test."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], object], within_s: float = 60.0) -> bool:
    """True as soon as `holds()` does; an AssertionError where it does not in time."""
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, "it never came to hold"
        time.sleep(0.01)
    return True
