"""Parallel schedule generation: goes through time and starts ops that fit; quick even for many thousand ops.

Source: Kolisch, "Serial and parallel resource-constrained project scheduling methods revisited", 1996. Giving ops fewer
or more threads at their start is our own addition; reserving cores for ops that do not fit (EASY backfilling) made
plans 0.08 % shorter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled, inlined
from threadcast.scheduler.kernels.heap import drop_first, push
from threadcast.scheduler.kernels.instance import Floats, Instance, Ints

LOOK_AHEAD = 8
"""Most ready ops that are tried for idle cores at one event."""


class _Room(NamedTuple):
    """Heaps of the ready ops, by key, and of the running ones, by finish; ops of one event; finishes of all running."""

    ready: Ints
    ready_key: Floats
    running: Ints
    finish: Floats
    started: Ints
    passed: Ints
    all_finishes: Floats


@compiled
def dispatch(instance: Instance, key: Floats, adapt: bool, choice: Ints, start: Floats) -> float:
    """Fill `start` with a list schedule by ascending `key` (n_ops,) and return its makespan in seconds.

    With `adapt` an op that does not fit starts at once with fewer threads if it finishes no later that way, and ops get
    more threads if cores would stay idle with no other op ready; `choice` is changed to what they have in the schedule.
    """
    all_widths, all_seconds = instance.width, instance.seconds
    indptr, indices = instance.successors
    n = len(key)
    waiting = instance.predecessors.indptr[1:] - instance.predecessors.indptr[:-1]
    ready, ready_key = np.empty(n + 1, dtype=np.int64), np.empty(n + 1)
    running, finish = np.empty(n + 1, dtype=np.int64), np.empty(n + 1)
    started, passed = np.empty(n, dtype=np.int64), np.empty(LOOK_AHEAD, dtype=np.int64)
    room = _Room(ready, ready_key, running, finish, started, passed, np.empty(n + 1))
    n_ready = n_running = 0
    for op in range(n):
        if waiting[op] == 0:
            n_ready = push(ready_key, ready, n_ready, key[op], op)
    idle, now = instance.cores, 0.0
    while True:
        idle, n_ready, n_started, n_passed = _start_ready(instance, adapt, choice, room, idle, now, n_ready, n_running)
        if adapt and n_ready == 0 and n_passed == 0:
            idle = _widen(instance, choice, started, n_started, idle)
        for i in range(n_started):
            op = int(started[i])
            start[op] = now
            n_running = push(finish, running, n_running, now + all_seconds[op, choice[op]], op)
        for i in range(n_passed):
            n_ready = push(ready_key, ready, n_ready, key[passed[i]], int(passed[i]))
        if n_running == 0:
            return now
        now = finish[0]
        while n_running > 0 and finish[0] <= now:
            op = running[0]
            n_running = drop_first(finish, running, n_running)
            idle += all_widths[op, choice[op]]
            for e in range(indptr[op], indptr[op + 1]):
                waiting[indices[e]] -= 1
                if waiting[indices[e]] == 0:
                    n_ready = push(ready_key, ready, n_ready, key[indices[e]], int(indices[e]))


@inlined
def _start_ready(
    instance: Instance, adapt: bool, choice: Ints, room: _Room, idle: int, now: float, n_ready: int, n_running: int
) -> tuple[int, int, int, int]:
    """Choose what starts now; return the idle cores and ready ops left, and the numbers of ops started and passed."""
    all_widths, all_seconds = instance.width, instance.seconds
    ready, ready_key, started, passed = room.ready, room.ready_key, room.started, room.passed
    n_started, n_passed = 0, 0
    while n_ready > 0 and idle > 0 and n_passed < LOOK_AHEAD:
        op = ready[0]
        n_ready = drop_first(ready_key, ready, n_ready)
        needed, seconds = all_widths[op, choice[op]], all_seconds[op, choice[op]]
        fits = needed <= idle
        if not fits and n_passed == 0 and adapt:
            begin_s = _first_idle(instance, choice, room, n_running, n_started, now, idle, needed)
            narrower = choice[op]
            while narrower >= 0 and all_widths[op, narrower] > idle:
                narrower -= 1
            if narrower >= 0 and now + all_seconds[op, narrower] <= begin_s + seconds:
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
    return idle, n_ready, n_started, n_passed


@inlined
def _widen(instance: Instance, choice: Ints, started: Ints, n_started: int, idle: int) -> int:
    """Give the idle cores to the ops that start, as far as they have a use for them; return the cores left."""
    width, choices = instance.width, instance.choices
    for i in range(n_started):
        op = started[i]
        own = width[op, choice[op]]
        while choice[op] + 1 < choices[op] and width[op, choice[op] + 1] - own <= idle:
            choice[op] += 1
        idle -= width[op, choice[op]] - own
    return idle


@inlined
def _first_idle(
    instance: Instance, choice: Ints, room: _Room, n_running: int, n_started: int, now: float, idle: int, needed: int
) -> float:
    """When `needed` cores will be idle."""
    all_widths, all_seconds = instance.width, instance.seconds
    running, started, finishes = room.running, room.started, room.all_finishes
    count = n_running + n_started
    for i in range(n_running):
        finishes[i] = room.finish[i]
    for i in range(n_started):
        finishes[n_running + i] = now + all_seconds[started[i], choice[started[i]]]
    free = idle
    for _ in range(count):  # few have to end as a rule, so that sorting them all takes longer
        first = 0
        for i in range(1, count):
            if finishes[i] < finishes[first]:
                first = i
        op = running[first] if first < n_running else started[first - n_running]
        free += all_widths[op, choice[op]]
        if free >= needed:
            return float(finishes[first])
        finishes[first] = np.inf
    return np.inf
