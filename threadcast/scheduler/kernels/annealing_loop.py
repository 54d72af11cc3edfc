"""Simulated annealing over thread counts and the order of ops, on equal cores or on real ones."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from threadcast.scheduler.kernels.arrays import copy_to
from threadcast.scheduler.kernels.compiled import compiled, inlined
from threadcast.scheduler.kernels.core_assignment import CoreAllotment, CoreGraph, CoreSchedule, assign_cores
from threadcast.scheduler.kernels.insertion import empty_profile, fill_levels, insert
from threadcast.scheduler.kernels.instance import Allotment, Bools, Floats, Ints
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
from threadcast.scheduler.problem.compressed_rows import CompressedRows


class Moves(NamedTuple):
    """Shares of moves that exchange cores between an op and another beside it (`trade`), that change only an op's
    thread count (`threads`), and that change its count and its place in the order (`both`); all others change its
    place.

    `frugality`: cost, in seconds of makespan, of one second of work over the cores; cores that are saved are free for
    other ops.
    """

    trade: float
    threads: float
    both: float
    frugality: float


ON_EQUAL_CORES, ON_REAL_CORES = Moves(0.15, 0.3, 0.2, 0.3), Moves(0.0, 0.4, 0.2, 0.0)


class CoreChoices(NamedTuple):
    """Thread counts and times that each op can choose, as in `CoreAllotment`, but (n_ops, n_choices).

    Op i can choose among the first `choices[i]` columns.
    """

    width: Ints
    fast: Floats
    slow: Floats
    spread: Bools
    choices: Ints


class _Current(NamedTuple):
    """The schedule that is changed; `start` holds the starts of the last accepted one."""

    order: Ints
    place: Ints
    choice: Ints
    allotment: CoreAllotment
    start: Floats


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
def anneal(
    graph: CoreGraph, options: CoreChoices, moves: Moves, real: bool, order: Ints, choice: Ints, random: RandomState,
    cooling: Cooling,
) -> float:  # fmt: skip
    """Improve `order` and `choice` in place; return their makespan in seconds, the least that was found.

    On `real` cores ops get cores by the rules of `assign_cores`; else all cores are equal, ops take their `fast` times,
    and each is inserted where enough cores stay free.
    """
    n, cores = len(order), len(graph.group)
    current = _current(options, order, choice)
    allotment, start = current.allotment, current.start
    equal, predecessors = Allotment(allotment.width, allotment.fast), graph.predecessors
    tried = CoreSchedule(np.empty(n), np.empty(n) if real else allotment.fast)
    tried_start, seconds = tried
    nowhere = CompressedRows(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    after_s, profile, chain = _least_after(graph, options, order), empty_profile(n), np.empty(n, dtype=np.int64)
    if real:
        now = assign_cores(graph, order, allotment, np.inf, tried, nowhere)
    else:
        now = insert(order, predecessors, equal, cores, after_s, np.inf, tried_start, profile)
    work = 0.0
    for op in range(n):
        work += allotment.width[op] * allotment.fast[op]
    best, best_order, best_choice, best_work = now, order.copy(), choice.copy(), work
    copy_to(start, tried_start)
    on_chain = critical_chain(seconds, start, now, random, chain)
    for number in range(cooling.moves):
        if best <= cooling.enough_s:
            break
        temperature = cooling.first_s * (cooling.last_s / cooling.first_s) ** (number / cooling.moves)
        move = _moved(graph, options, moves, current, some_op(n, chain, on_chain, random), work, random)
        if move.end == move.begin and choice[move.op] == move.old:
            continue
        limit_s = now - moves.frugality * (move.work - work) / cores - temperature * math.log(1.0 - draw(random))
        if real:
            found = assign_cores(graph, order, allotment, limit_s, tried, nowhere)
        else:
            found = insert(order, predecessors, equal, cores, after_s, limit_s, tried_start, profile)
        if found <= limit_s:
            changed = found != now
            now, work = found, move.work
            copy_to(start, tried_start)
            if now < best or (moves.frugality > 0.0 and now == best and work < best_work):
                best, best_work = now, work
                copy_to(best_order, order)
                copy_to(best_choice, choice)
            if changed:
                on_chain = critical_chain(seconds, start, now, random, chain)
        else:
            _undo(options, current, move)
    copy_to(order, best_order)
    copy_to(choice, best_choice)
    return best


@inlined
def _current(options: CoreChoices, order: Ints, choice: Ints) -> _Current:
    n = len(order)
    place = np.empty(n, dtype=np.int64)
    allotment = CoreAllotment(np.empty(n, dtype=np.int64), np.empty(n), np.empty(n), np.empty(n, dtype=np.bool_))
    current = _Current(order, place, choice, allotment, np.empty(n))
    for op in range(n):
        allotment.width[op], allotment.fast[op] = 0, 0.0
        _choose(options, current, op, int(choice[op]))
        place[order[op]] = op
    return current


@inlined
def _least_after(graph: CoreGraph, options: CoreChoices, order: Ints) -> Floats:
    """(n_ops,) least seconds from each op's end to the end of the schedule, for any thread counts."""
    n = len(order)
    fastest, after_s = np.empty(n), np.empty(n)
    for op in range(n):
        fastest[op] = options.fast[op, options.choices[op] - 1]
    fill_levels(order, graph.successors, fastest, after_s)
    for op in range(n):
        after_s[op] -= fastest[op]
        after_s[op] *= 1 - 1e-12  # rounding
    return after_s


@inlined
def _moved(
    graph: CoreGraph, options: CoreChoices, moves: Moves, current: _Current, op: int, work: float, random: RandomState
) -> _Move:
    """Change the thread count or the place of `op`, or both; `work` are all core-seconds before."""
    choice, place, allotment = current.choice, current.place, current.allotment
    old, begin, end = int(choice[op]), int(place[op]), int(place[op])
    other, other_old = -1, 0
    kind = draw(random)
    if options.choices[op] > 1 and kind < moves.threads + moves.both + moves.trade:
        new = other_choice(old, options.choices[op], random)
        if kind < moves.trade:
            other = _beside(op, current.start, allotment.fast, int(draw(random) * len(place)))
        if other >= 0:
            other_old = int(choice[other])
            room = allotment.width[op] + allotment.width[other] - options.width[op, new]
            work += _choose(options, current, other, _widest(options, other, room))
        work += _choose(options, current, op, new)
    if kind >= moves.threads + moves.trade or options.choices[op] == 1:
        end = some_place(op, graph.predecessors, graph.successors, place, random)
        if end != begin:
            shift(current.order, place, begin, end)
    return _Move(op, old, begin, end, other, other_old, work)


@inlined
def _undo(options: CoreChoices, current: _Current, move: _Move) -> None:
    shift(current.order, current.place, move.end, move.begin)
    _choose(options, current, move.op, move.old)
    if move.other >= 0:
        _choose(options, current, move.other, move.other_old)


@inlined
def _choose(options: CoreChoices, current: _Current, op: int, new: int) -> float:
    """Give `op` its choice number `new`; return by how many core-seconds its work grows."""
    width, fast, slow, spread = current.allotment
    grows = options.width[op, new] * options.fast[op, new] - width[op] * fast[op]
    current.choice[op], width[op], spread[op] = new, options.width[op, new], options.spread[op, new]
    fast[op], slow[op] = options.fast[op, new], options.slow[op, new]
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
def _widest(options: CoreChoices, op: int, room: int) -> int:
    """The op's widest choice of at most `room` cores; its narrowest where there is none."""
    best = 0
    for c in range(1, options.choices[op]):
        if options.width[op, c] <= room:
            best = c
    return best
