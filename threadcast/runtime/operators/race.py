"""How much faster one operator is than another on this machine: outside of any call, as it differs by processor."""

from __future__ import annotations

import time
from collections.abc import Callable

from threadcast.threads.openmp import torch_threads

GAIN = 1.25
"""How many times as fast an operator of our own has to be on this machine to stand in place of PyTorch's."""
_TRIES = 7
_MOST_S = 0.2
"""Seconds after which there is no further try: without instructions for a type one may take as long."""


def times_as_fast(
    ours: Callable[[], object], theirs: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of `theirs` over those of `ours` on one thread: of each the fastest of some tries, by turns.

    With more threads it would be how they divide the work that counts, and most operators of a plan have few.
    """
    best, first_s = [float("inf")] * 2, clock()
    with torch_threads(1):
        for number in range(_TRIES):
            if number > 1 and clock() - first_s > _MOST_S:
                break
            for which, run in enumerate((ours, theirs)):
                begin_s = clock()
                run()
                best[which] = min(best[which], clock() - begin_s)
    return best[1] / best[0]
