"""Serial schedule generation: places each op, in a given order, at the earliest time at which enough cores stay free.

An op may wait for a wider slot, while later ops fill the hole. Some order always gives an optimal schedule. Source:
Kolisch, "Serial and parallel resource-constrained project scheduling methods revisited", 1996.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled, helper
from threadcast.scheduler.kernels.instance import Allotment, Floats, Ints
from threadcast.scheduler.problem.compressed_rows import CompressedRows


class Profile(NamedTuple):
    """Free cores over time: `free[i]` of them from `time[i]` to `time[i + 1]`, and at the last entry for good."""

    time: Floats
    free: Ints


@compiled
def empty_profile(n_ops: int) -> Profile:
    """Return an empty profile with room for a schedule of `n_ops` ops; each adds at most two entries."""
    return Profile(np.empty(2 * n_ops + 2), np.empty(2 * n_ops + 2, dtype=np.int64))


@compiled
def fill_levels(order: Ints, successors: CompressedRows, seconds: Floats, level: Floats) -> float:
    """Fill `level` with each op's longest path to the end, its own time included; return the longest of all."""
    indptr, indices = successors
    longest = 0.0
    for k in range(len(order) - 1, -1, -1):
        op = order[k]
        behind = 0.0
        for e in range(indptr[op], indptr[op + 1]):
            behind = max(behind, level[indices[e]])
        level[op] = behind + seconds[op]
        longest = max(longest, level[op])
    return longest


@compiled
def insert(
    order: Ints, predecessors: CompressedRows, allotment: Allotment, cores: int, after_s: Floats, limit_s: float,
    start: Floats, profile: Profile,
) -> float:  # fmt: skip
    """Fill `start` with the schedule of `order` and return its makespan in seconds.

    Gives up and returns infinity as soon as the makespan is known to exceed `limit_s`. `after_s`: (n_ops,) least
    seconds from each op's end to the end of the schedule.
    """
    indptr, indices = predecessors.indptr, predecessors.indices
    width, seconds = allotment.width, allotment.seconds
    time, free = profile.time, profile.free
    time[0], free[0] = 0.0, cores
    count = 1
    makespan = 0.0
    for k in range(len(order)):
        op = order[k]
        begin = 0.0
        for e in range(indptr[op], indptr[op + 1]):
            begin = max(begin, start[indices[e]] + seconds[indices[e]])
        at = _first_slot(time, free, count, begin, width[op], seconds[op])
        begin = max(begin, time[at])
        finish = begin + seconds[op]
        if finish + after_s[op] > limit_s:
            return np.inf
        start[op] = begin
        makespan = max(makespan, finish)
        if seconds[op] == 0.0:
            continue
        # Take the cores; in a function of its own this takes twice as long, as the compiler then knows less of `at`.
        if time[at] < begin:
            for i in range(count, at + 1, -1):
                time[i], free[i] = time[i - 1], free[i - 1]
            count += 1
            at += 1
            time[at], free[at] = begin, free[at - 1]
        last = at
        while last < count and time[last] < finish:
            last += 1
        if last == count or time[last] > finish:
            for i in range(count, last, -1):
                time[i], free[i] = time[i - 1], free[i - 1]
            count += 1
            time[last], free[last] = finish, free[last - 1]
        for i in range(at, last):
            free[i] -= width[op]
    return makespan


@helper
def _first_slot(time: Floats, free: Ints, count: int, begin: float, width: int, seconds: float) -> int:
    """The entry of the profile at which `width` cores are first free, from `begin` on, for `seconds`."""
    low, high = 0, count - 1  # the last entry that is not after `begin`
    while low < high:
        middle = (low + high + 1) // 2
        if time[middle] <= begin:
            low = middle
        else:
            high = middle - 1
    at = scan = low
    while True:
        if free[scan] < width:
            scan += 1
            at = scan
            continue
        scan += 1
        if scan == count or time[scan] >= max(begin, time[at]) + seconds:
            return at
