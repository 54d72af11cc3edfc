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

THREADS, BOTH = 0.4, 0.2
"""Shares of moves that change only an op's thread count, and that change its count and its place in the order; all
others change its place."""


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
    """A move: `op` had choice `old` and went from place `begin` to `end`."""

    op: int
    old: int
    begin: int
    end: int


@compiled
def anneal(
    graph: CoreGraph, options: CoreChoices, real: bool, order: Ints, choice: Ints, random: RandomState,
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
    best, best_order, best_choice = now, order.copy(), choice.copy()
    copy_to(start, tried_start)
    on_chain = critical_chain(seconds, start, now, random, chain)
    for number in range(cooling.moves):
        if best <= cooling.enough_s:
            break
        temperature = cooling.first_s * (cooling.last_s / cooling.first_s) ** (number / cooling.moves)
        move = _moved(graph, options, current, some_op(n, chain, on_chain, random), random)
        if move.end == move.begin and choice[move.op] == move.old:
            continue
        limit_s = now - temperature * math.log(1.0 - draw(random))
        if real:
            found = assign_cores(graph, order, allotment, limit_s, tried, nowhere)
        else:
            found = insert(order, predecessors, equal, cores, after_s, limit_s, tried_start, profile)
        if found <= limit_s:
            changed = found != now
            now = found
            copy_to(start, tried_start)
            if now < best:
                best = now
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
def _moved(graph: CoreGraph, options: CoreChoices, current: _Current, op: int, random: RandomState) -> _Move:
    """Change the thread count or the place of `op`, or both."""
    choice, place = current.choice, current.place
    old, begin, end = int(choice[op]), int(place[op]), int(place[op])
    kind = draw(random)
    if options.choices[op] > 1 and kind < THREADS + BOTH:
        _choose(options, current, op, other_choice(old, options.choices[op], random))
    if kind >= THREADS or options.choices[op] == 1:
        end = some_place(op, graph.predecessors, graph.successors, place, random)
        if end != begin:
            shift(current.order, place, begin, end)
    return _Move(op, old, begin, end)


@inlined
def _undo(options: CoreChoices, current: _Current, move: _Move) -> None:
    shift(current.order, current.place, move.end, move.begin)
    _choose(options, current, move.op, move.old)


@inlined
def _choose(options: CoreChoices, current: _Current, op: int, new: int) -> None:
    """Give `op` its choice number `new`."""
    width, fast, slow, spread = current.allotment
    current.choice[op], width[op], spread[op] = new, options.width[op, new], options.spread[op, new]
    fast[op], slow[op] = options.fast[op, new], options.slow[op, new]
