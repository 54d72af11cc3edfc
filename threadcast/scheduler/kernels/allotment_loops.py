"""The compiled loop of `search.allotments`."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled, inlined
from threadcast.scheduler.kernels.insertion import fill_levels
from threadcast.scheduler.kernels.instance import Instance, Ints

PASSES = 4
"""Number of rounds in which slack is used; further rounds change almost nothing."""


@compiled
def use_slack(instance: Instance, widest: Ints, limit_s: float, choice: Ints) -> None:
    """Fill `choice` with frugal thread counts under which no path lasts longer than `limit_s`.

    No op gets more than its `widest` cores. Each op's time may grow by the factor `limit_s` over the longest path
    through the op; then no path exceeds the limit. Among its counts that take no longer than that, the op gets the one
    of least work. The slack that is left is used in the next round. Where even the fastest counts exceed `limit_s`, the
    ops keep these.
    """
    n = instance.order.size
    seconds, level, reached = np.empty(n), np.empty(n), np.empty(n)
    backwards = instance.order[::-1].copy()
    for op in range(n):
        last = instance.choices[op] - 1
        while last > 0 and instance.width[op, last] > widest[op]:
            last -= 1
        choice[op] = last
        seconds[op] = instance.seconds[op, last]
    for _ in range(PASSES):
        fill_levels(instance.order, instance.successors, seconds, level)
        fill_levels(backwards, instance.predecessors, seconds, reached)
        changed = False
        for op in range(n):
            path = reached[op] - seconds[op] + level[op]
            if path <= 0.0 or path > limit_s:
                continue
            best = _most_frugal(instance, op, choice[op], seconds[op] * (limit_s / path) * (1 + 1e-12))
            if best != choice[op]:
                changed = True
                choice[op] = best
                seconds[op] = instance.seconds[op, best]
        if not changed:
            break


@inlined
def _most_frugal(instance: Instance, op: int, choice: int, allowed_s: float) -> int:
    """The choice of least work of at most `choice` that takes at most `allowed_s`."""
    width, seconds = instance.width, instance.seconds
    best, work = choice, width[op, choice] * seconds[op, choice]
    for c in range(choice - 1, -1, -1):
        if seconds[op, c] > allowed_s:
            break
        if width[op, c] * seconds[op, c] < work:
            best, work = c, width[op, c] * seconds[op, c]
    return best
