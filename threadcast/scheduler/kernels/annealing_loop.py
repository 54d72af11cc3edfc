"""Simulated annealing over thread counts and the order of ops, on equal cores."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from threadcast.scheduler.kernels.arrays import copy_to
from threadcast.scheduler.kernels.compiled import compiled, inlined
from threadcast.scheduler.kernels.insertion import Profile, empty_profile, fill_levels, insert
from threadcast.scheduler.kernels.instance import Allotment, Floats, Instance, Ints
from threadcast.scheduler.kernels.random_moves import (
    Cooling,
    RandomState,
    critical_chain,
    draw,
    other_choice,
    shift,
    some_op,
    some_place,
)

FRUGALITY = 0.3
"""Cost, in seconds of makespan, of one second of work over the cores: cores that are saved are free for other ops."""
P_TRADE, P_COUNT, P_BOTH = 0.15, 0.3, 0.2
"""Shares of moves that exchange cores between an op and another beside it; that change only an op's thread count; that
change its count and its place in the order. All other moves change its place."""


class _Current(NamedTuple):
    """The schedule that is changed: `start` holds the starts of the last accepted one, `tried` is room for the next."""

    order: Ints
    place: Ints
    choice: Ints
    allotment: Allotment
    start: Floats
    tried: Floats
    profile: Profile
    chain: Ints


class _Move(NamedTuple):
    """A move: `op` had choice `old` and went from place `begin` to `end`; `other` (-1: none) had `other_old`.

    `work`: core-seconds by which the work of all ops has grown.
    """

    op: int
    old: int
    begin: int
    end: int
    other: int
    other_old: int
    work: float


@compiled
def anneal(instance: Instance, order: Ints, choice: Ints, random: RandomState, cooling: Cooling) -> float:
    """Improve `order` and `choice` in place; return their makespan in seconds, the least that was found."""
    n, cores = len(order), instance.cores
    current = _current(instance, order, choice)
    start, tried, chain, allotment = current.start, current.tried, current.chain, current.allotment
    predecessors, profile = instance.predecessors, current.profile
    after_s = _least_after(instance, order)
    now = insert(order, predecessors, allotment, cores, after_s, np.inf, start, profile)
    work = 0.0
    for op in range(n):
        work += allotment.width[op] * allotment.seconds[op]
    best, best_order, best_choice, best_work = now, order.copy(), choice.copy(), work
    on_chain = critical_chain(allotment.seconds, start, now, random, chain)
    for number in range(cooling.moves):
        if best <= cooling.enough_s:
            break
        temperature = cooling.first_s * (cooling.last_s / cooling.first_s) ** (number / cooling.moves)
        move = _moved(instance, current, some_op(n, chain, on_chain, random), work, random)
        if move.end == move.begin and choice[move.op] == move.old:
            continue
        limit_s = now - FRUGALITY * (move.work - work) / cores - temperature * math.log(1.0 - draw(random))
        found = insert(order, predecessors, allotment, cores, after_s, limit_s, tried, profile)
        if found <= limit_s:
            changed = found != now
            now, work = found, move.work
            copy_to(start, tried)
            if now < best or (now == best and work < best_work):
                best, best_work = now, work
                copy_to(best_order, order)
                copy_to(best_choice, choice)
            if changed:
                on_chain = critical_chain(allotment.seconds, start, now, random, chain)
        else:
            _undo(instance, current, move)
    copy_to(order, best_order)
    copy_to(choice, best_choice)
    return best


@inlined
def _current(instance: Instance, order: Ints, choice: Ints) -> _Current:
    n = len(order)
    width, seconds, place = np.empty(n, dtype=np.int64), np.empty(n), np.empty(n, dtype=np.int64)
    for op in range(n):
        width[op], seconds[op] = instance.width[op, choice[op]], instance.seconds[op, choice[op]]
    for k in range(n):
        place[order[k]] = k
    return _Current(
        order, place, choice, Allotment(width, seconds), np.empty(n), np.empty(n), empty_profile(n),
        np.empty(n, dtype=np.int64),
    )  # fmt: skip


@inlined
def _least_after(instance: Instance, order: Ints) -> Floats:
    """(n_ops,) least seconds from each op's end to the end of the schedule, for any thread counts."""
    n = len(order)
    fastest, after_s = np.empty(n), np.empty(n)
    for op in range(n):
        fastest[op] = instance.seconds[op, instance.choices[op] - 1]
    fill_levels(order, instance.successors, fastest, after_s)
    for op in range(n):
        after_s[op] -= fastest[op]
        after_s[op] *= 1 - 1e-12  # rounding
    return after_s


@inlined
def _moved(instance: Instance, current: _Current, op: int, work: float, random: RandomState) -> _Move:
    """Change the thread count or the place of `op`, or both; `work` are all core-seconds before."""
    choice, place, allotment = current.choice, current.place, current.allotment
    old, begin, end = int(choice[op]), int(place[op]), int(place[op])
    other, other_old = -1, 0
    kind = draw(random)
    if instance.choices[op] > 1 and kind < P_COUNT + P_BOTH + P_TRADE:
        new = other_choice(old, instance.choices[op], random)
        if kind < P_TRADE:
            other = _beside(op, current.start, allotment.seconds, int(draw(random) * len(place)))
        if other >= 0:
            other_old = int(choice[other])
            room = allotment.width[op] + allotment.width[other] - instance.width[op, new]
            work += _choose(instance, current, other, _widest(instance, other, room))
        work += _choose(instance, current, op, new)
    if kind >= P_COUNT + P_TRADE or instance.choices[op] == 1:
        end = some_place(op, instance.predecessors, instance.successors, place, random)
        if end != begin:
            shift(current.order, place, begin, end)
    return _Move(op, old, begin, end, other, other_old, work)


@inlined
def _undo(instance: Instance, current: _Current, move: _Move) -> None:
    shift(current.order, current.place, move.end, move.begin)
    _choose(instance, current, move.op, move.old)
    if move.other >= 0:
        _choose(instance, current, move.other, move.other_old)


@inlined
def _choose(instance: Instance, current: _Current, op: int, new: int) -> float:
    """Give `op` its choice number `new`; return by how many core-seconds its work grows."""
    width, seconds = current.allotment
    grows = instance.width[op, new] * instance.seconds[op, new] - width[op] * seconds[op]
    current.choice[op], width[op], seconds[op] = new, instance.width[op, new], instance.seconds[op, new]
    return float(grows)


@inlined
def _beside(op: int, start: Floats, seconds: Floats, begin: int) -> int:
    """An op that runs at the same time as `op` for a while, searched from number `begin` on; -1 where there is none."""
    n = len(start)
    for k in range(n):
        other = (begin + k) % n
        if other != op and start[other] < start[op] + seconds[op] and start[op] < start[other] + seconds[other]:
            return other
    return -1


@inlined
def _widest(instance: Instance, op: int, room: int) -> int:
    """The op's widest choice of at most `room` cores; its narrowest where there is none."""
    best = 0
    for c in range(1, instance.choices[op]):
        if instance.width[op, c] <= room:
            best = c
    return best
