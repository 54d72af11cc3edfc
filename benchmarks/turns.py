"""Seconds of a call in a turn, where the ways that are compared take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def median_s(call: Callable[[], object], turn_s: float) -> float:
    """Median seconds of the calls of one turn: as many as fit into `turn_s` seconds, 3 at least."""
    found: list[float] = []
    end_s = time.perf_counter() + turn_s
    while time.perf_counter() < end_s or len(found) < 3:
        began_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - began_s)
    return statistics.median(found)
