"""Chooses which idle cores an op gets: the rules of `simulation.core_picker.CorePicker` in compiled loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from threadcast.scheduler.kernels.arrays import copy_to, smallest
from threadcast.scheduler.kernels.compiled import inlined
from threadcast.scheduler.kernels.instance import Floats, Ints


class Cores(NamedTuple):
    """The cores of a machine while a schedule is built: the `group` of each, from 0 on, and when it becomes `free`.

    `free` is in seconds. The other arrays are work space: `partly_sorted` and `picked` (n_cores,), `idle` and `quota`
    (n_groups,).
    """

    group: Ints
    free: Floats
    partly_sorted: Floats
    picked: Ints
    idle: Ints
    quota: Ints


@inlined
def idle_cores(group: Ints) -> Cores:
    """Return cores of these groups that are all free from 0 s on."""
    n, groups = len(group), 0
    for c in range(n):
        groups = max(groups, group[c] + 1)
    return Cores(
        group, np.zeros(n), np.empty(n), np.empty(n, dtype=np.int64), np.empty(groups, dtype=np.int64),
        np.empty(groups, dtype=np.int64),
    )  # fmt: skip


@inlined
def first_free(cores: Cores, count: int) -> float:
    """Return the first time in seconds at which `count` cores are free."""
    copy_to(cores.partly_sorted, cores.free)
    return smallest(cores.partly_sorted, count - 1)


@inlined
def first_free_apart(cores: Cores, count: int) -> float:
    """Return the first time in seconds at which `count` groups have a free core."""
    free, group = cores.free, cores.group
    first = np.full(len(cores.idle), np.inf)
    for c in range(len(free)):
        first[group[c]] = min(first[group[c]], free[c])
    return smallest(first, count - 1)


@inlined
def first_free_together(cores: Cores) -> float:
    """Return the first time in seconds at which two cores of one group are free."""
    free, group = cores.free, cores.group
    first, second = np.full(len(cores.idle), np.inf), np.full(len(cores.idle), np.inf)
    for c in range(len(free)):
        g = group[c]
        if free[c] < first[g]:
            first[g], second[g] = free[c], first[g]
        elif free[c] < second[g]:
            second[g] = free[c]
    least = second[0]
    for g in range(1, len(second)):
        least = min(least, second[g])
    return float(least)


@inlined
def pick(cores: Cores, begin: float, count: int, spread: bool) -> bool:
    """Fill `cores.picked` with `count` cores that are free at `begin`; return whether no two share a group.

    COMPACT (not `spread`): from the smallest group that suffices, else the fullest groups whole and the rest from the
    smallest group that suffices. SPREAD: one a group, those with most idle cores first.
    """
    free, group, idle, quota, picked = cores.free, cores.group, cores.idle, cores.quota, cores.picked
    idle[:] = 0
    most = 0
    for c in range(len(free)):
        if free[c] <= begin:
            idle[group[c]] += 1
            most = max(most, idle[group[c]])
    if spread:
        _share_out_spread(idle, quota, most, count)
    else:
        _share_out_compact(idle, quota, most, count)
    apart, found = True, 0
    for g in range(len(quota)):
        apart = apart and quota[g] <= 1
    for c in range(len(free)):
        if free[c] <= begin and quota[group[c]] > 0:
            quota[group[c]] -= 1
            picked[found] = c
            found += 1
    return apart


@inlined
def _share_out_spread(idle: Ints, quota: Ints, most: int, count: int) -> None:
    """Fill `quota` with how many of `count` cores each group gives; no group has more than `most` idle ones."""
    quota[:] = 0
    left = count
    while left > 0:
        for size in range(most, 0, -1):
            for g in range(len(idle)):
                if left > 0 and idle[g] == size and quota[g] < size:
                    quota[g] += 1
                    left -= 1


@inlined
def _share_out_compact(idle: Ints, quota: Ints, most: int, count: int) -> None:
    quota[:] = 0
    left = count
    for size in range(most, 0, -1):
        for g in range(len(idle)):
            if left > size and idle[g] == size:
                quota[g] = size
                left -= size
            elif left > 0 and idle[g] == size:
                best = g
                for other in range(len(idle)):
                    if quota[other] == 0 and left <= idle[other] < idle[best]:
                        best = other
                quota[best] = left
                left = 0


@inlined
def pick_latest(cores: Cores, begin: float, count: int) -> None:
    """Fill `cores.picked` with those `count` of the cores free at `begin` that became free last."""
    free, picked = cores.free, cores.picked
    copy_to(cores.partly_sorted, free)
    available = 0
    for c in range(len(free)):
        if free[c] <= begin:
            available += 1
    since = smallest(cores.partly_sorted, available - count)
    found = 0
    for c in range(len(free)):
        if since < free[c] <= begin:
            picked[found] = c
            found += 1
    for c in range(len(free)):
        if free[c] == since and found < count:
            picked[found] = c
            found += 1
