"""The allotment phase of CPA: widen ops of the critical path until it is as short as the area over the cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import chain

import numpy as np

from threadcast.core import OpGraph
from threadcast.scheduler.problem.times import Integers, Times

STILL_CRITICAL = 1 - 1e-12
"""A path of at least this share of the longest one counts as critical: sums in another order differ by less."""

BATCH = 1 << 14
"""Steps that are at most taken on one path before it is checked to be critical still."""


def grown(graph: OpGraph, times: Times, *, cores: int, level: Integers, room: Integers) -> Integers:
    """Return the allotment at which CPA stops; (n_ops,) positions in `times.counts`.

    Every op starts at its smallest offered count. While the critical path is longer than the core-seconds over
    `cores`, the op of the path whose seconds over count fall most goes to its next offered count that is faster.
    A step that needs more cores than `room` has at the op's `level` is left out (MCPA). It stops early where no op
    of the path can take a step. Among equals the op of the lower position. Takes the extra `plan` (numba) to be
    fast: without it the same loop runs about 100 times slower.
    """
    position = times.within(0)
    counts = np.asarray(times.counts, dtype=np.int64)
    order = np.asarray(graph.topological_order, dtype=np.int64)
    before, after = _lists(graph.predecessors), _lists(graph.successors)
    _grow()(times.seconds, counts, position, level, room.copy(), *before, *after, order, cores)
    return position


def _lists(neighbours: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """All lists behind each other, and where each begins; one more entry for the end."""
    begin = np.zeros(len(neighbours) + 1, dtype=np.int64)
    np.cumsum([len(ops) for ops in neighbours], out=begin[1:])
    return begin, np.fromiter(chain.from_iterable(neighbours), dtype=np.int64)


@cache
def _grow() -> Callable[..., None]:
    from threadcast.scheduler.kernels.compiled import compiled  # brings numba along

    return compiled(grow_in_place)


def grow_in_place(seconds, counts, position, level, room, first_before, before, first_after, after, order, cores):  # type: ignore[no-untyped-def]
    """Change `position` and `room` as `grown` says.

    A path that is critical after several steps on its own ops was critical before each of them: a step shortens no
    other path by more. So steps are taken in batches, twice as many each time, on one path; if it is not critical
    after a batch, the batch is taken back and halved. Bottom levels are renewed only where they change.
    """
    n = len(position)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    sources = np.flatnonzero(first_before[1:] == first_before[:-1])
    faster = np.full(seconds.shape, -1, dtype=np.int16)  # the next position that is faster; -1 where there is none
    for op in range(n):
        for here in range(len(counts) - 2, -1, -1):
            to = here + 1
            while to >= 0 and not seconds[op, to] < seconds[op, here]:
                to = faster[op, to]
            faster[op, here] = to
    time = np.empty(n)
    area = 0.0
    gain = np.zeros(n)  # of the next step, negative; 0 where there is none
    for op in range(n):
        here, to = position[op], faster[op, position[op]]
        time[op] = seconds[op, here]
        area += time[op] * counts[here]
        gain[op] = 0.0 if to < 0 else seconds[op, to] / counts[to] - time[op] / counts[here]
    bottom = np.zeros(n)
    stale = np.ones(n, dtype=np.bool_)  # by place in `order`: whether the bottom level has to be renewed
    top, many = n - 1, n  # highest place of those, and their number
    path = np.empty(n, dtype=np.int64)
    length, path_s = 0, 0.0
    heap = [(0.0, 0)]  # ops of the path that can grow: falling gain
    done = np.empty((BATCH, 2), dtype=np.int64)  # steps of the batch: the op and the position that it left
    steps, batch, ended = 0, 1, False
    area_before, path_before_s = area, 0.0
    while True:
        at = top
        while many:
            if stale[at]:
                stale[at] = False
                many -= 1
                op = order[at]
                behind_s = 0.0
                for i in range(first_after[op], first_after[op + 1]):
                    behind_s = max(behind_s, bottom[after[i]])
                if bottom[op] != time[op] + behind_s:
                    bottom[op] = time[op] + behind_s
                    for i in range(first_before[op], first_before[op + 1]):
                        many += not stale[place[before[i]]]
                        stale[place[before[i]]] = True
            at -= 1
        top = 0
        head = sources[0]
        for source in sources:
            if bottom[source] > bottom[head]:
                head = source
        if steps and path_s >= bottom[head] * STILL_CRITICAL:
            if ended:
                return
            batch = min(2 * batch, BATCH)
        else:
            if steps > 1:
                for i in range(steps - 1, -1, -1):
                    back, here = done[i]
                    room[level[back]] += counts[position[back]] - counts[here]
                    position[back] = here
                    to = faster[back, here]
                    time[back] = seconds[back, here]
                    gain[back] = seconds[back, to] / counts[to] - time[back] / counts[here]
                    top = max(top, place[back])
                    many += not stale[place[back]]
                    stale[place[back]] = True
                area, path_s = area_before, path_before_s
                batch = max(1, steps // 2)
            else:
                path_s, length = bottom[head], 0
                while head >= 0:
                    path[length] = head
                    length += 1
                    following = -1
                    for i in range(first_after[head], first_after[head + 1]):
                        if following < 0 or bottom[after[i]] > bottom[following]:
                            following = after[i]
                    head = following
                batch = 1
            heap = [(gain[op], op) for op in path[:length] if gain[op] < 0]
            heapify(heap)
        steps, ended = 0, False
        area_before, path_before_s = area, path_s
        while steps < batch:
            ended = path_s <= area / cores or len(heap) == 0
            if ended:
                break
            op = heappop(heap)[1]
            here, to = position[op], faster[op, position[op]]
            if counts[to] - counts[here] > room[level[op]]:
                continue
            done[steps, 0], done[steps, 1] = op, here
            steps += 1
            room[level[op]] -= counts[to] - counts[here]
            area += seconds[op, to] * counts[to] - time[op] * counts[here]
            path_s += seconds[op, to] - time[op]
            position[op] = to
            time[op] = seconds[op, to]
            top = max(top, place[op])
            many += not stale[place[op]]
            stale[place[op]] = True
            further = faster[op, to]
            gain[op] = 0.0 if further < 0 else seconds[op, further] / counts[further] - time[op] / counts[to]
            if further >= 0:
                heappush(heap, (gain[op], op))
        if steps == 0:
            return
