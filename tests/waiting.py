"""Waiting for what happens beside a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

SHORTEST_S, LONGEST_S = 0.01, 0.1
"""Pauses between two looks."""
HANGS_S = 240.0
"""Seconds after which what is waited for will not come, however busy and slow the machine is."""


def eventually(holds: Callable[[], object], within_s: float = HANGS_S) -> bool:
    """True as soon as `holds()` does; an AssertionError where it does not in time.

    It looks less often the longer it takes: looks, such as requests, take time that what is waited for may need.
    """
    began_s = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - began_s
        assert waited_s < within_s, "it never came to hold"
        time.sleep(min(max(waited_s / 20, SHORTEST_S), LONGEST_S))
    return True


def attempts() -> Iterator[int]:
    """0, 1, 2 and so on, for a loop that ends itself; an AssertionError where it hangs."""
    end_s = time.monotonic() + HANGS_S
    for number in count():
        yield number
        assert time.monotonic() < end_s, f"it goes on after {number + 1} attempts"


def is_asleep(thread: int) -> bool:
    """Whether this thread of the process waits for something, or has ended; one that spins does not."""
    try:
        stat = Path(f"/proc/self/task/{thread}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] != "R"
