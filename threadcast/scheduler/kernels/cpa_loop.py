"""The allotment phase of CPA: widen ops of the critical path until it is as short as the area over the cores.

Source: Radulescu and van Gemund 2001 (`policies.cpa`). Levels are renewed only where a step has changed them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.kernels.compiled import compiled, helper, inlined
from threadcast.scheduler.kernels.instance import Bools, Floats, Instance, Ints
from threadcast.scheduler.problem.compressed_rows import CompressedRows

STILL_CRITICAL = 1 - 1e-12
"""A path of at least this share of the longest one counts as critical: sums in another order differ by less."""


class _Levels(NamedTuple):
    """`level`: longest path in seconds from each op to the end, out of date where `stale` is set, by `place` in the
    order."""

    level: Floats
    stale: Bools
    place: Ints


@compiled
def grow(instance: Instance, depth: NDArray[np.int64], spare: NDArray[np.int64], choice: Ints) -> None:
    """Change `choice`, at first each op's narrowest, to the allotment at which CPA stops.

    A step of op i that needs more than `spare[depth[i]]` cores is left out; `spare` becomes what the ops leave.
    """
    n, width = len(choice), instance.width
    levels = _Levels(np.zeros(n), np.ones(n, dtype=np.bool_), np.empty(n, dtype=np.int64))
    seconds, gain, path = np.empty(n), np.empty(n), np.empty(n, dtype=np.int64)
    area, path_s, length, last = 0.0, 0.0, 0, n - 1
    for k in range(n):
        levels.place[instance.order[k]] = k
    for op in range(n):
        seconds[op] = instance.seconds[op, choice[op]]
        gain[op] = _gain(instance, op, int(choice[op]))
        area += seconds[op] * width[op, choice[op]]
    while True:
        _renew(instance, levels, seconds, last)
        head = _first_of_longest(instance, levels.level)
        if length == 0 or path_s < levels.level[head] * STILL_CRITICAL:
            path_s, length = levels.level[head], _follow(instance.successors, levels.level, head, path)
        if path_s <= area / instance.cores:
            return
        widened = -1
        for i in range(length):
            op = int(path[i])
            if gain[op] == 0.0 or width[op, choice[op] + 1] - width[op, choice[op]] > spare[depth[op]]:
                continue
            if widened < 0 or gain[op] < gain[widened] or (gain[op] == gain[widened] and op < widened):
                widened = op
        if widened < 0:
            return
        old, new = choice[widened], choice[widened] + 1
        choice[widened] = new
        spare[depth[widened]] -= width[widened, new] - width[widened, old]
        area += instance.seconds[widened, new] * width[widened, new] - seconds[widened] * width[widened, old]
        path_s += instance.seconds[widened, new] - seconds[widened]
        seconds[widened], gain[widened] = instance.seconds[widened, new], _gain(instance, widened, int(new))
        last = levels.place[widened]
        levels.stale[last] = True


@inlined
def _gain(instance: Instance, op: int, choice: int) -> float:
    """The change of the op's seconds over its cores by its next step, negative; 0 where there is none."""
    if choice + 1 == instance.choices[op]:
        return 0.0
    width, seconds = instance.width, instance.seconds
    return float(seconds[op, choice + 1] / width[op, choice + 1] - seconds[op, choice] / width[op, choice])


@inlined
def _renew(instance: Instance, levels: _Levels, seconds: Floats, last: int) -> None:
    """Bring the levels up to date, of which none is stale behind the place `last`."""
    level, stale, place = levels
    before_at, before = instance.predecessors
    after_at, after = instance.successors
    for at in range(last, -1, -1):
        if stale[at]:
            stale[at] = False
            op = instance.order[at]
            behind_s = 0.0
            for e in range(after_at[op], after_at[op + 1]):
                behind_s = max(behind_s, level[after[e]])
            if level[op] != seconds[op] + behind_s:
                level[op] = seconds[op] + behind_s
                for e in range(before_at[op], before_at[op + 1]):
                    stale[place[before[e]]] = True


@inlined
def _first_of_longest(instance: Instance, level: Floats) -> int:
    """The op of the highest level that waits for none; among equals the lowest."""
    indptr = instance.predecessors.indptr
    first = -1
    for op in range(len(level)):
        if indptr[op] == indptr[op + 1] and (first < 0 or level[op] > level[first]):
            first = op
    return first


@helper
def _follow(successors: CompressedRows, level: Floats, first: int, path: Ints) -> int:
    """Fill `path` with the ops of the longest path from `first` on, in order; return their number."""
    indptr, indices = successors
    count, op = 0, first
    while op >= 0:
        path[count] = op
        count += 1
        after = -1
        for e in range(indptr[op], indptr[op + 1]):
            if after < 0 or level[indices[e]] > level[after]:
                after = int(indices[e])
        op = after
    return count
