"""Start times from thread counts and an order: the inner loops of the search.

Two ways to build a schedule (Kolisch, Serial and parallel resource-constrained project scheduling methods revisited,
1996): `insert` takes the ops in a given order and puts each at the earliest time at which enough cores stay free for
it, so that an op may wait for a wider slot and later ones fill the hole; some order always gives an optimal schedule.
`dispatch` goes through time and starts whatever fits; it takes far less time on large graphs.

All arrays are those of `instance`; `start` (n_ops,) float64 is filled, the makespan in seconds is returned.
"""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled
from threadcast.scheduler.kernels.instance import Floats, Ints

LOOK_AHEAD = 8
"""Ready ops that `dispatch` tries for idle cores at one event."""


@compiled
def tails(order: Ints, after_at: Ints, after: Ints, seconds: Floats, tail: Floats) -> float:
    """Fill `tail` with each op's longest path to the end, its own time included; return the longest of all."""
    longest = 0.0
    for k in range(len(order) - 1, -1, -1):
        op = order[k]
        behind = 0.0
        for e in range(after_at[op], after_at[op + 1]):
            behind = max(behind, tail[after[e]])
        tail[op] = behind + seconds[op]
        longest = max(longest, tail[op])
    return longest


@compiled
def insert(
    order: Ints, before_at: Ints, before: Ints, width: Ints, seconds: Floats, cores: int, behind: Floats,
    limit_s: float, start: Floats, time: Floats, free: Ints,
) -> float:  # fmt: skip
    """Put ops, in `order`, each at the earliest time at which its cores are free for as long as it takes.

    Gives up and returns infinity as soon as the makespan is known to exceed `limit_s`: `behind` (n_ops,) are
    seconds that pass at least after each op. `time` and `free` are room for 2 n_ops + 2 entries: `free[i]` cores are
    free from `time[i]` to `time[i + 1]`.
    """
    count = 1
    time[0] = 0.0
    free[0] = cores
    makespan = 0.0
    for k in range(len(order)):
        op = order[k]
        begin = 0.0
        for e in range(before_at[op], before_at[op + 1]):
            other = before[e]
            begin = max(begin, start[other] + seconds[other])
        low, high = 0, count - 1  # the last entry that is not after `begin`
        while low < high:
            middle = (low + high + 1) // 2
            if time[middle] <= begin:
                low = middle
            else:
                high = middle - 1
        at, needed, lasts = low, width[op], seconds[op]
        if lasts == 0.0:
            while free[at] < needed:
                at += 1
            start[op] = max(begin, time[at])
            makespan = max(makespan, start[op])
            if start[op] + behind[op] > limit_s:
                return np.inf
            continue
        scan = at
        while True:
            if free[scan] < needed:
                scan += 1
                at = scan
                continue
            scan += 1
            if scan == count or time[scan] >= max(begin, time[at]) + lasts:
                break
        begin = max(begin, time[at])
        finish = begin + lasts
        if finish + behind[op] > limit_s:
            return np.inf
        start[op] = begin
        makespan = max(makespan, finish)
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
            free[i] -= needed
    return makespan


@compiled
def _push(heap: Floats, who: Ints, count: int, key: float, op: int) -> int:
    i = count
    while i > 0:
        parent = (i - 1) // 2
        if heap[parent] <= key:
            break
        heap[i], who[i] = heap[parent], who[parent]
        i = parent
    heap[i], who[i] = key, op
    return count + 1


@compiled
def _pop(heap: Floats, who: Ints, count: int) -> int:
    """Drop the first entry."""
    count -= 1
    key, op = heap[count], who[count]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        if child + 1 < count and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[i], who[i] = heap[child], who[child]
        i = child
    heap[i], who[i] = key, op
    return count


@compiled
def dispatch(
    key: Floats, before_at: Ints, after_at: Ints, after: Ints, all_widths: Ints, all_seconds: Floats, choices: Ints,
    cores: int, reserve: bool, adapt: bool, choice: Ints, start: Floats,
) -> float:  # fmt: skip
    """Go through time and start the ready ops, lowest `key` first, for which enough cores are idle.

    With `reserve` the first op that does not fit keeps the cores that it waits for: others start only if they have
    finished when it can start, or leave it enough (EASY backfilling, Lifka 1995). With `adapt` such an op starts at
    once with fewer threads where it finishes no later that way, and ops that leave cores idle with nothing ready to
    take them get more; `choice` is changed accordingly.
    """
    n = len(key)
    waiting = before_at[1:] - before_at[:-1]
    ready, ready_op = np.empty(n + 1), np.empty(n + 1, dtype=np.int32)
    running, running_op = np.empty(cores + n + 1), np.empty(cores + n + 1, dtype=np.int32)
    passed, started = np.empty(LOOK_AHEAD, dtype=np.int32), np.empty(n, dtype=np.int32)
    ends = np.empty(n + 1)
    n_ready = n_running = 0
    for op in range(n):
        if waiting[op] == 0:
            n_ready = _push(ready, ready_op, n_ready, key[op], op)
    idle, now = cores, 0.0
    while True:
        n_passed, n_started, shadow_s, spare = 0, 0, np.inf, 0
        while n_ready > 0 and idle > 0 and n_passed < LOOK_AHEAD:
            op = ready_op[0]
            n_ready = _pop(ready, ready_op, n_ready)
            needed, lasts = all_widths[op, choice[op]], all_seconds[op, choice[op]]
            fits = needed <= idle
            if fits and n_passed > 0 and reserve and now + lasts > shadow_s:
                fits = needed <= spare
                if fits:
                    spare -= needed
            if not fits and n_passed == 0 and (reserve or adapt):
                shadow_s, spare = _wait(running, running_op, n_running, started, n_started, now, idle, needed,
                                        all_widths, all_seconds, choice, ends)  # fmt: skip
                if adapt:
                    narrower = choice[op]
                    while narrower >= 0 and all_widths[op, narrower] > idle:
                        narrower -= 1
                    if narrower >= 0 and now + all_seconds[op, narrower] <= shadow_s + lasts:
                        choice[op] = narrower
                        needed = all_widths[op, narrower]
                        fits = True
            if fits:
                idle -= needed
                started[n_started] = op
                n_started += 1
            else:
                passed[n_passed] = op
                n_passed += 1
        if adapt and n_ready == 0 and n_passed == 0:
            for i in range(n_started):
                op = started[i]
                has = all_widths[op, choice[op]]
                while choice[op] + 1 < choices[op] and all_widths[op, choice[op] + 1] - has <= idle:
                    choice[op] += 1
                idle -= all_widths[op, choice[op]] - has
        for i in range(n_started):
            op = started[i]
            start[op] = now
            n_running = _push(running, running_op, n_running, now + all_seconds[op, choice[op]], op)
        for i in range(n_passed):
            n_ready = _push(ready, ready_op, n_ready, key[passed[i]], passed[i])
        if n_running == 0:
            return now
        now = running[0]
        while n_running > 0 and running[0] <= now:
            op = running_op[0]
            n_running = _pop(running, running_op, n_running)
            idle += all_widths[op, choice[op]]
            for e in range(after_at[op], after_at[op + 1]):
                waiting[after[e]] -= 1
                if waiting[after[e]] == 0:
                    n_ready = _push(ready, ready_op, n_ready, key[after[e]], after[e])


@compiled
def _wait(
    running: Floats, running_op: Ints, n_running: int, started: Ints, n_started: int, now: float, idle: int,
    needed: int, all_widths: Ints, all_seconds: Floats, choice: Ints, ends: Floats,
) -> tuple[float, int]:  # fmt: skip
    """When `needed` cores will be idle, and how many more than these are then; `ends` is room for all that runs."""
    count = n_running + n_started
    for i in range(n_running):
        ends[i] = running[i]
    for i in range(n_started):
        ends[n_running + i] = now + all_seconds[started[i], choice[started[i]]]
    free = idle
    for _ in range(count):  # few have to end as a rule, so that sorting them all takes longer
        first = 0
        for i in range(1, count):
            if ends[i] < ends[first]:
                first = i
        op = running_op[first] if first < n_running else started[first - n_running]
        free += all_widths[op, choice[op]]
        if free >= needed:
            return ends[first], free - needed
        ends[first] = np.inf
    return np.inf, 0
