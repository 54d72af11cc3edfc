"""Schedules on real cores: each op, in a given order, gets cores, and takes its time on these cores.

How long an op takes depends on its cores, of one cache group or of many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled
from threadcast.scheduler.kernels.core_picking import (
    first_free,
    first_free_apart,
    first_free_together,
    idle_cores,
    pick,
    pick_latest,
)
from threadcast.scheduler.kernels.instance import Bools, Floats, Ints
from threadcast.scheduler.problem.compressed_rows import CompressedRows


class CoreGraph(NamedTuple):
    """The data that all schedules of a problem share: edges, and the cache group of each core."""

    predecessors: CompressedRows
    successors: CompressedRows
    group: Ints


class CoreAllotment(NamedTuple):
    """The thread count of each op and its seconds at that count, (n_ops,) each.

    `fast` and `slow`: on cores of its better and of its other affinity; `spread`: whether the better one is SPREAD.
    """

    width: Ints
    fast: Floats
    slow: Floats
    spread: Bools


class CoreSchedule(NamedTuple):
    """When each op starts and how many seconds it takes; (n_ops,) each."""

    start: Floats
    seconds: Floats


@compiled
def assign_cores(
    graph: CoreGraph, order: Ints, allotment: CoreAllotment, limit_s: float, schedule: CoreSchedule,
    cores_of: CompressedRows,
) -> float:  # fmt: skip
    """Give each op, in `order`, cores as early as that many are free; fill `schedule` and return the makespan.

    An op waits for cores of its better affinity if it ends earlier then. Ops that take no time get cores that are idle
    when they can start. `cores_of` is room for each op's cores, as positions in the machine; if it is empty, these are
    not stored. Returns infinity as soon as the makespan exceeds `limit_s`.
    """
    indptr, indices = graph.predecessors
    start, seconds = schedule
    cores = idle_cores(graph.group)
    free, picked = cores.free, cores.picked
    makespan = 0.0
    for k in range(len(order)):
        op = order[k]
        count = int(allotment.width[op])
        ready, available = 0.0, 0
        for e in range(indptr[op], indptr[op + 1]):
            ready = max(ready, start[indices[e]] + seconds[indices[e]])
        for c in range(len(free)):
            if free[c] <= ready:
                available += 1
        begin = ready if available >= count else first_free(cores, count)
        fast, slow, wants_spread = allotment.fast[op], allotment.slow[op], allotment.spread[op]
        takes = fast
        if fast == 0.0 and slow == 0.0:
            pick_latest(cores, begin, count)
        elif len(cores.idle) == 1:
            pick(cores, begin, count, False)
        elif pick(cores, begin, count, wants_spread) != wants_spread and count > 1:
            takes = slow
            if fast < slow:
                later = first_free_apart(cores, count) if wants_spread else first_free_together(cores)
                later = max(begin, later)
                if later + fast < begin + slow:
                    begin, takes = later, fast
                    pick(cores, begin, count, wants_spread)
        start[op], seconds[op] = begin, takes
        finish = begin + takes
        for i in range(count):
            free[picked[i]] = finish
        if len(cores_of.indices) > 0:
            for i in range(count):
                cores_of.indices[cores_of.indptr[op] + i] = picked[i]
        makespan = max(makespan, finish)
        if makespan > limit_s:
            return np.inf
    return makespan
