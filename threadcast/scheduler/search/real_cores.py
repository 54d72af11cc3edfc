"""The inner loops of schedules on real cores: which cores each op gets, and local search over that.

A schedule is an order and a thread count for each op; ops are taken in the order. All arrays are those of
`core_layout.CoreLayout`: `fast` and `slow` are an op's seconds on cores of its better and of its other affinity,
`spread` says whether the better one is SPREAD; `group` (n_cores,) are the cores' cache groups, numbered from 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.kernels.compiled import compiled
from threadcast.scheduler.kernels.instance import Floats, Ints
from threadcast.scheduler.search.annealing import critical_chain, draw, other_choice, shift, some_op, some_place

Bools = NDArray[np.bool_]

P_COUNT, P_BOTH = 0.4, 0.2
"""Shares of moves that change an op's thread count alone, or with its place. The others change its place."""


@compiled
def _when(free: Floats, count: int, room: Floats) -> float:
    """When `count` cores are free."""
    room[:] = free
    room.sort()
    return float(room[count - 1])


@compiled
def _when_spread(free: Floats, group: Ints, groups: int, count: int) -> float:
    """When `count` groups have a free core."""
    first = np.full(groups, np.inf)
    for c in range(len(free)):
        first[group[c]] = min(first[group[c]], free[c])
    first.sort()
    return float(first[count - 1])


@compiled
def _when_shared(free: Floats, group: Ints, groups: int) -> float:
    """When two cores of one group are free."""
    first, second = np.full(groups, np.inf), np.full(groups, np.inf)
    for c in range(len(free)):
        g = group[c]
        if free[c] < first[g]:
            first[g], second[g] = free[c], first[g]
        elif free[c] < second[g]:
            second[g] = free[c]
    return float(second.min())


@compiled
def _pick(
    free: Floats, group: Ints, groups: int, begin: float, count: int, spread: bool, idle: Ints, quota: Ints,
    chosen: Ints,
) -> bool:  # fmt: skip
    """Fill `chosen` with `count` cores that are free at `begin`; return whether no two share a group.

    By the rules of `cores.CorePicker`: COMPACT from the smallest group that suffices, else the fullest groups whole;
    SPREAD one a group, those with most idle cores first.
    """
    idle[:] = 0
    quota[:] = 0
    most = 0
    for c in range(len(free)):
        if free[c] <= begin:
            idle[group[c]] += 1
            most = max(most, idle[group[c]])
    left = count
    if spread:
        while left > 0:
            for size in range(most, 0, -1):
                for g in range(groups):
                    if left > 0 and idle[g] == size and quota[g] < size:
                        quota[g] += 1
                        left -= 1
    else:
        for size in range(most, 0, -1):
            for g in range(groups):
                if left > size and idle[g] == size:
                    quota[g] = size
                    left -= size
                elif left > 0 and idle[g] == size:
                    best = g
                    for other in range(groups):
                        if quota[other] == 0 and left <= idle[other] < idle[best]:
                            best = other
                    quota[best] = left
                    left = 0
    apart, found = True, 0
    for g in range(groups):
        apart = apart and quota[g] <= 1
    for c in range(len(free)):
        if free[c] <= begin and quota[group[c]] > 0:
            quota[group[c]] -= 1
            chosen[found] = c
            found += 1
    return apart


@compiled
def _pick_latest(free: Floats, begin: float, count: int, room: Floats, chosen: Ints) -> None:
    """Fill `chosen` with the `count` cores that are free at `begin` and became so last."""
    room[:] = free
    room.sort()
    last = len(free)
    while last > 0 and room[last - 1] > begin:
        last -= 1
    since = room[last - count]
    found = 0
    for c in range(len(free)):
        if since < free[c] <= begin:
            chosen[found] = c
            found += 1
    for c in range(len(free)):
        if free[c] == since and found < count:
            chosen[found] = c
            found += 1


@compiled
def lay(
    order: Ints, before_at: Ints, before: Ints, width: Ints, fast: Floats, slow: Floats, spread: Bools, group: Ints,
    limit_s: float, start: Floats, lasts: Floats, core_at: Ints, cores: Ints,
) -> float:  # fmt: skip
    """Give each op, in `order`, cores as early as that many are free, and fill `start` and `lasts`.

    `width`, `fast`, `slow`, `spread`: (n_ops,), at the ops' thread counts. An op waits for cores of its better
    affinity where it so ends earlier. Those of op i are `cores[core_at[i]:core_at[i + 1]]`, as columns; they are left
    out where `cores` is empty. Returns the makespan, or infinity as soon as it exceeds `limit_s`.
    """
    groups = int(group.max()) + 1
    free, room = np.zeros(len(group)), np.empty(len(group))
    idle, quota = np.empty(groups, dtype=np.int32), np.empty(groups, dtype=np.int32)
    chosen = np.empty(len(group), dtype=np.int32)
    makespan = 0.0
    for k in range(len(order)):
        op = order[k]
        count, wants = width[op], spread[op]
        ready, available = 0.0, 0
        for e in range(before_at[op], before_at[op + 1]):
            ready = max(ready, start[before[e]] + lasts[before[e]])
        for c in range(len(group)):
            if free[c] <= ready:
                available += 1
        begin = ready if available >= count else _when(free, count, room)
        took = fast[op]
        if took == 0.0 and slow[op] == 0.0:
            _pick_latest(free, begin, count, room, chosen)
        elif groups == 1:
            _pick(free, group, groups, begin, count, False, idle, quota, chosen)
        else:
            apart = _pick(free, group, groups, begin, count, wants, idle, quota, chosen)
            if apart != wants and count > 1:
                took = slow[op]
                if fast[op] < took:
                    later = _when_spread(free, group, groups, count) if wants else _when_shared(free, group, groups)
                    later = max(begin, later)
                    if later + fast[op] < begin + took:
                        begin, took = later, fast[op]
                        _pick(free, group, groups, begin, count, wants, idle, quota, chosen)
        start[op], lasts[op] = begin, took
        finish = begin + took
        for i in range(count):
            free[chosen[i]] = finish
        if len(cores) > 0:
            cores[core_at[op] : core_at[op + 1]] = chosen[:count]
        makespan = max(makespan, finish)
        if makespan > limit_s:
            return np.inf
    return makespan


@compiled
def beside(
    order: Ints, before_at: Ints, after_at: Ints, after: Ints, core_at: Ints, cores: Ints, n_cores: int,
    seconds: Floats, label: Ints, per_core: Floats, whole: Floats, most: int, largest: float, limit_s: float,
    start: Floats, lasts: Floats,
) -> float:  # fmt: skip
    """Run ops on the cores that `lay` gave them while they slow each other down; fill `start` and `lasts`.

    Each op starts when those it waits for and those before it, in `order`, on its cores have finished. `seconds` are
    lone ones; the slow-downs are those of `class_interference.Apart`. Returns the makespan, or infinity as soon as it
    exceeds `limit_s`.
    """
    n, labels = len(order), len(per_core)
    waiting = before_at[1:] - before_at[:-1]
    behind, last = np.full(core_at[n], -1, dtype=np.int32), np.full(n_cores, -1, dtype=np.int32)
    for k in range(n):
        op = order[k]
        for i in range(core_at[op], core_at[op + 1]):
            if last[cores[i]] >= 0:
                behind[last[cores[i]]] = op
                waiting[op] += 1
            last[cores[i]] = i
    running, left = np.empty(n, dtype=np.int32), np.empty(n)
    factor = np.empty(n)
    load, count = np.zeros(labels), np.zeros(labels)
    n_running, now = 0, 0.0
    for op in range(n):
        if waiting[op] == 0:
            running[n_running], left[n_running], start[op] = op, seconds[op], 0.0
            n_running += 1
            load[label[op]] += min(most, core_at[op + 1] - core_at[op])
            count[label[op]] += 1
    while n_running > 0:
        step = np.inf
        for r in range(n_running):
            op = running[r]
            own, excess = label[op], 0.0
            mine = min(most, core_at[op + 1] - core_at[op])
            for other in range(labels):
                same = 1 if other == own else 0
                excess += per_core[own, other] * (load[other] - same * mine)
                excess += whole[own, other] * (count[other] - same)
            factor[r] = min(largest, 1.0 + excess)
            step = min(step, left[r] * factor[r])
        now += step
        if now > limit_s:
            return np.inf
        went_on, n_before = 0, n_running
        done = np.empty(n_before, dtype=np.int32)
        n_done = 0
        for r in range(n_before):
            op = running[r]
            if left[r] * factor[r] <= step * (1 + 1e-12):
                done[n_done] = op
                n_done += 1
            else:
                running[went_on], left[went_on] = op, left[r] - step / factor[r]
                went_on += 1
        n_running = went_on
        for d in range(n_done):
            op = done[d]
            lasts[op] = now - start[op]
            load[label[op]] -= min(most, core_at[op + 1] - core_at[op])
            count[label[op]] -= 1
            freed = after_at[op + 1] - after_at[op] + core_at[op + 1] - core_at[op]
            for e in range(freed):
                at = after_at[op] + e
                nxt = after[at] if at < after_at[op + 1] else behind[core_at[op] + at - after_at[op + 1]]
                if nxt >= 0:
                    waiting[nxt] -= 1
                    if waiting[nxt] == 0:
                        running[n_running], left[n_running], start[nxt] = nxt, seconds[nxt], now
                        n_running += 1
                        load[label[nxt]] += min(most, core_at[nxt + 1] - core_at[nxt])
                        count[label[nxt]] += 1
    return now


@compiled
def take(
    order: Ints, before_at: Ints, before: Ints, after_at: Ints, after: Ints, width: Ints, fast: Floats, slow: Floats,
    spread: Bools, group: Ints, label: Ints, per_core: Floats, whole: Floats, most: int, largest: float, limit_s: float,
    start: Floats, lasts: Floats,
) -> float:  # fmt: skip
    """The makespan of `lay`, or where there are labels of `beside` on its cores."""
    n = len(order)
    core_at = np.zeros(n + 1, dtype=np.int32)
    if len(label) > 0:
        for op in range(n):
            core_at[op + 1] = core_at[op] + width[op]
    cores = np.empty(core_at[n], dtype=np.int32)
    lone_s = lay(order, before_at, before, width, fast, slow, spread, group, limit_s, start, lasts, core_at, cores)
    if len(label) == 0 or lone_s > limit_s:
        return lone_s
    return beside(
        order, before_at, after_at, after, core_at, cores, len(group), lasts.copy(), label, per_core, whole, most,
        largest, limit_s, start, lasts,
    )  # fmt: skip


@compiled
def polish(
    before_at: Ints, before: Ints, after_at: Ints, after: Ints, all_widths: Ints, all_fast: Floats, all_slow: Floats,
    all_spread: Bools, choices: Ints, group: Ints, label: Ints, per_core: Floats, whole: Floats, most: int,
    largest: float, order: Ints, choice: Ints, state: np.ndarray, moves: int, warm_s: float, cold_s: float,
    enough_s: float,
) -> float:  # fmt: skip
    """Improve `order` and `choice` in place by `moves` moves, as `annealing.anneal` does, on real cores.

    `all_...`: (n_ops, n_choices), of which the first `choices` (n_ops,) of each op are its own. Without labels ops do
    not slow each other down, else as in `beside`.
    """
    n = len(order)
    width, spread = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.bool_)
    fast, slow = np.empty(n), np.empty(n)
    for op in range(n):
        width[op], spread[op] = all_widths[op, choice[op]], all_spread[op, choice[op]]
        fast[op], slow[op] = all_fast[op, choice[op]], all_slow[op, choice[op]]
    start, lasts = np.empty(n), np.empty(n)
    place, chain = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    for k in range(n):
        place[order[k]] = k
    now = take(
        order, before_at, before, after_at, after, width, fast, slow, spread, group, label, per_core, whole, most,
        largest, np.inf, start, lasts,
    )  # fmt: skip
    best, best_order, best_choice = now, order.copy(), choice.copy()
    on_chain = critical_chain(before_at, before, lasts, start, now, state, chain)
    for move in range(moves):
        if best <= enough_s:
            break
        temperature = warm_s * (cold_s / warm_s) ** (move / moves)
        op = some_op(n, chain, on_chain, state)
        old, begin, end = choice[op], place[op], place[op]
        kind = draw(state)
        if choices[op] > 1 and kind < P_COUNT + P_BOTH:
            new = other_choice(old, choices[op], state)
            choice[op], width[op], spread[op] = new, all_widths[op, new], all_spread[op, new]
            fast[op], slow[op] = all_fast[op, new], all_slow[op, new]
        if kind >= P_COUNT or choices[op] == 1:
            end = some_place(op, before_at, before, after_at, after, place, state)
            if end == begin and choice[op] == old:
                continue
            shift(order, place, begin, end)
        limit_s = now - temperature * math.log(1.0 - draw(state))
        found = take(
            order, before_at, before, after_at, after, width, fast, slow, spread, group, label, per_core, whole, most,
            largest, limit_s, start, lasts,
        )  # fmt: skip
        if found <= limit_s:
            if found != now:
                on_chain = critical_chain(before_at, before, lasts, start, found, state, chain)
            now = found
            if now < best:
                best = now
                best_order[:] = order
                best_choice[:] = choice
        else:
            shift(order, place, end, begin)
            choice[op], width[op], spread[op] = old, all_widths[op, old], all_spread[op, old]
            fast[op], slow[op] = all_fast[op, old], all_slow[op, old]
    order[:] = best_order
    choice[:] = best_choice
    return best
