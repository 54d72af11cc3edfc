"""Waiting for what happens beside a test."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORTEST_S, LONGEST_S = 0.01, 0.1
"""Pauses between two looks."""


def eventually(holds: Callable[[], object], within_s: float = 60.0) -> bool:
    """True as soon as `holds()` does; an AssertionError where it does not in time.

    It looks less often the longer it takes: looks, such as requests, take time that what is waited for may need.
    """
    began_s = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - began_s
        assert waited_s < within_s, "it never came to hold"
        time.sleep(min(max(waited_s / 20, SHORTEST_S), LONGEST_S))
    return True
