"""The compiled loops of `search.allotments`."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled, inlined
from threadcast.scheduler.kernels.insertion import fill_levels
from threadcast.scheduler.kernels.instance import Floats, Instance, Ints
from threadcast.scheduler.problem.compressed_rows import CompressedRows

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
    seconds, level, earliest = np.empty(n), np.empty(n), np.empty(n)
    for op in range(n):
        last = instance.choices[op] - 1
        while last > 0 and instance.width[op, last] > widest[op]:
            last -= 1
        choice[op] = last
        seconds[op] = instance.seconds[op, last]
    for _ in range(PASSES):
        fill_levels(instance.order, instance.successors, seconds, level)
        _fill_earliest(instance, seconds, earliest)
        changed = False
        for op in range(n):
            path = earliest[op] + level[op]
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
def _fill_earliest(instance: Instance, seconds: Floats, earliest: Floats) -> None:
    """Fill `earliest` with the seconds of the longest path that ends where each op starts."""
    indptr, indices = instance.predecessors
    for op in instance.order:
        begin = 0.0
        for e in range(indptr[op], indptr[op + 1]):
            begin = max(begin, earliest[indices[e]] + seconds[indices[e]])
        earliest[op] = begin


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


@compiled
def fill_depths(order: Ints, successors: CompressedRows, depth: Ints) -> None:
    """Fill `depth`, all 0 before, with the largest number of edges on a path from the graph's start to each op."""
    indptr, indices = successors
    for op in order:
        for e in range(indptr[op], indptr[op + 1]):
            depth[indices[e]] = max(depth[indices[e]], depth[op] + 1)
