"""The allotment phase of CPA: widen ops of the critical path until it is as short as the area over the cores.

Source: Radulescu and van Gemund 2001 (`policies.cpa`). A path that is critical after several steps on its own ops was
critical before each of them: a step shortens no other path by more. So steps are taken in batches on one path, twice as
many each time; if it is not critical after a batch, the batch is undone and halved. Levels are renewed only where they
change. The result is that of one step at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.kernels.compiled import compiled, inlined
from threadcast.scheduler.kernels.gain_heap import GainHeap, add, take_first
from threadcast.scheduler.kernels.instance import Bools, Floats, Instance, Ints

STILL_CRITICAL = 1 - 1e-12
"""A path of at least this share of the longest one counts as critical: sums in another order differ by less."""

BATCH = 1 << 14
"""Most steps on one path before it is checked whether the path is still critical."""


class _Growth(NamedTuple):
    """Where the allotment stands.

    `gain`: (n_ops,) change of seconds over cores by the op's next step, negative; 0 where there is none. `spare`: cores
    left, by precedence level (`depth` of each op). `level`: longest path from each op to the end, out of date where
    `stale` is set, by `place` in the order; `pending`: how many are, and the highest place of these. `batch`: ops of
    the steps taken since the path was last known to be critical.
    """

    choice: Ints
    seconds: Floats
    gain: Floats
    depth: NDArray[np.int64]
    spare: NDArray[np.int64]
    level: Floats
    stale: Bools
    place: Ints
    pending: Ints
    batch: Ints


@compiled
def grow(instance: Instance, depth: NDArray[np.int64], spare: NDArray[np.int64], choice: Ints) -> None:
    """Change `choice`, at first each op's narrowest, to the allotment at which CPA stops.

    A step of op i that needs more than `spare[depth[i]]` cores is left out; `spare` becomes what the ops leave.
    """
    growth = _begin(instance, depth, spare, choice)
    area = 0.0
    for op in range(len(choice)):
        area += growth.seconds[op] * instance.width[op, choice[op]]
    path = np.empty(len(choice), dtype=np.int64)
    length, path_s = 0, 0.0
    area_before, path_before_s = area, 0.0
    heap = GainHeap(np.empty(len(choice)), np.empty(len(choice), dtype=np.int64), np.zeros(1, dtype=np.int64))
    steps, limit, ended = 0, 1, False
    while True:
        _renew_levels(instance, growth)
        head = _first_of_longest(instance, growth.level)
        if steps > 0 and path_s >= growth.level[head] * STILL_CRITICAL:
            if ended:
                return
            limit = min(2 * limit, BATCH)
        else:
            if steps > 1:
                for i in range(steps - 1, -1, -1):
                    _step(instance, growth, int(growth.batch[i]), -1)
                area, path_s = area_before, path_before_s
                limit = max(1, steps // 2)
            else:
                path_s, length = growth.level[head], _follow(instance, growth.level, head, path)
                limit = 1
            heap.size[0] = 0
            for i in range(length):
                if growth.gain[path[i]] < 0:
                    add(heap, growth.gain[path[i]], path[i])
        area_before, path_before_s = area, path_s
        steps, ended, area, path_s = _take_steps(instance, growth, heap, limit, area, path_s)
        if steps == 0:
            return


@inlined
def _begin(instance: Instance, depth: NDArray[np.int64], spare: NDArray[np.int64], choice: Ints) -> _Growth:
    n = len(choice)
    place, seconds, gain = np.empty(n, dtype=np.int64), np.empty(n), np.empty(n)
    for k in range(n):
        place[instance.order[k]] = k
    for op in range(n):
        seconds[op] = instance.seconds[op, choice[op]]
        gain[op] = _gain(instance, op, int(choice[op]))
    pending = np.array([n, n - 1], dtype=np.int64)
    return _Growth(
        choice, seconds, gain, depth, spare, np.zeros(n), np.ones(n, dtype=np.bool_), place, pending,
        np.empty(BATCH, dtype=np.int64),
    )  # fmt: skip


@inlined
def _gain(instance: Instance, op: int, choice: int) -> float:
    if choice + 1 == instance.choices[op]:
        return 0.0
    width, seconds = instance.width, instance.seconds
    return float(seconds[op, choice + 1] / width[op, choice + 1] - seconds[op, choice] / width[op, choice])


@inlined
def _renew_levels(instance: Instance, growth: _Growth) -> None:
    level, stale, pending, place = growth.level, growth.stale, growth.pending, growth.place
    before_at, before = instance.predecessors
    after_at, after = instance.successors
    at = pending[1]
    while pending[0] > 0:
        if stale[at]:
            stale[at] = False
            pending[0] -= 1
            op = instance.order[at]
            behind_s = 0.0
            for e in range(after_at[op], after_at[op + 1]):
                behind_s = max(behind_s, level[after[e]])
            if level[op] != growth.seconds[op] + behind_s:
                level[op] = growth.seconds[op] + behind_s
                for e in range(before_at[op], before_at[op + 1]):
                    if not stale[place[before[e]]]:
                        stale[place[before[e]]] = True
                        pending[0] += 1
        at -= 1
    pending[1] = 0


@inlined
def _first_of_longest(instance: Instance, level: Floats) -> int:
    """The op of the highest level that waits for none; among equals the lowest."""
    indptr = instance.predecessors.indptr
    first = -1
    for op in range(len(level)):
        if indptr[op] == indptr[op + 1] and (first < 0 or level[op] > level[first]):
            first = op
    return first


@inlined
def _follow(instance: Instance, level: Floats, head: int, path: NDArray[np.int64]) -> int:
    """Fill `path` with the longest path from `head` on and return its length."""
    indptr, indices = instance.successors
    length = 0
    while head >= 0:
        path[length] = head
        length += 1
        following = -1
        for e in range(indptr[head], indptr[head + 1]):
            if following < 0 or level[indices[e]] > level[following]:
                following = indices[e]
        head = following
    return length


@inlined
def _step(instance: Instance, growth: _Growth, op: int, by: int) -> None:
    """Give `op` its next wider thread count (`by` 1) or its last one back (-1)."""
    width, old = instance.width, int(growth.choice[op])
    new = old + by
    growth.choice[op] = new
    growth.spare[growth.depth[op]] -= width[op, new] - width[op, old]
    growth.seconds[op] = instance.seconds[op, new]
    growth.gain[op] = _gain(instance, op, new)
    at = growth.place[op]
    growth.pending[1] = max(growth.pending[1], at)
    if not growth.stale[at]:
        growth.stale[at] = True
        growth.pending[0] += 1


@inlined
def _take_steps(
    instance: Instance, growth: _Growth, heap: GainHeap, limit: int, area: float, path_s: float
) -> tuple[int, bool, float, float]:
    """Take at most `limit` steps on the ops of `heap`; return their number, whether CPA ends here, area and path."""
    width, seconds = instance.width, instance.seconds
    steps = 0
    while steps < limit:
        if path_s <= area / instance.cores or heap.size[0] == 0:
            return steps, True, area, path_s
        op = take_first(heap)
        here = growth.choice[op]
        if width[op, here + 1] - width[op, here] > growth.spare[growth.depth[op]]:
            continue
        area += seconds[op, here + 1] * width[op, here + 1] - seconds[op, here] * width[op, here]
        path_s += seconds[op, here + 1] - seconds[op, here]
        _step(instance, growth, op, 1)
        growth.batch[steps] = op
        steps += 1
        if here + 2 < instance.choices[op]:
            add(heap, growth.gain[op], op)
    return steps, False, area, path_s
