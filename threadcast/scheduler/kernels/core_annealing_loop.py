"""Simulated annealing over thread counts and the order of ops, on real cores."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from threadcast.scheduler.kernels.arrays import copy_to
from threadcast.scheduler.kernels.compiled import compiled, inlined
from threadcast.scheduler.kernels.core_assignment import CoreAllotment, CoreGraph, CoreSchedule, makespan_on_cores
from threadcast.scheduler.kernels.instance import Bools, Floats, Ints
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

P_COUNT, P_BOTH = 0.4, 0.2
"""Shares of moves that change an op's thread count alone, or with its place. The others change its place."""


class CoreChoices(NamedTuple):
    """Thread counts and times that each op can choose, as in `CoreAllotment`, but (n_ops, n_choices).

    Op i can choose among the first `choices[i]` columns.
    """

    width: Ints
    fast: Floats
    slow: Floats
    spread: Bools
    choices: Ints


@compiled
def anneal_on_cores(
    graph: CoreGraph, options: CoreChoices, order: Ints, choice: Ints, random: RandomState, cooling: Cooling
) -> float:
    """Improve `order` and `choice` in place; return their makespan in seconds, the least that was found."""
    n = len(order)
    allotment = CoreAllotment(np.empty(n, dtype=np.int64), np.empty(n), np.empty(n), np.empty(n, dtype=np.bool_))
    for op in range(n):
        _choose(options, allotment, choice, op, int(choice[op]))
    schedule = CoreSchedule(np.empty(n), np.empty(n))
    place, chain = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for k in range(n):
        place[order[k]] = k
    now = makespan_on_cores(graph, order, allotment, np.inf, schedule)
    best, best_order, best_choice = now, order.copy(), choice.copy()
    on_chain = critical_chain(schedule.seconds, schedule.start, now, random, chain)
    for number in range(cooling.moves):
        if best <= cooling.enough_s:
            break
        temperature = cooling.first_s * (cooling.last_s / cooling.first_s) ** (number / cooling.moves)
        op = some_op(n, chain, on_chain, random)
        old, begin, end = int(choice[op]), int(place[op]), int(place[op])
        kind = draw(random)
        if options.choices[op] > 1 and kind < P_COUNT + P_BOTH:
            _choose(options, allotment, choice, op, other_choice(old, options.choices[op], random))
        if kind >= P_COUNT or options.choices[op] == 1:
            end = some_place(op, graph.predecessors, graph.successors, place, random)
            if end == begin and choice[op] == old:
                continue
            shift(order, place, begin, end)
        limit_s = now - temperature * math.log(1.0 - draw(random))
        found = makespan_on_cores(graph, order, allotment, limit_s, schedule)
        if found <= limit_s:
            if found != now:
                on_chain = critical_chain(schedule.seconds, schedule.start, found, random, chain)
            now = found
            if now < best:
                best = now
                copy_to(best_order, order)
                copy_to(best_choice, choice)
        else:
            shift(order, place, end, begin)
            _choose(options, allotment, choice, op, old)
    copy_to(order, best_order)
    copy_to(choice, best_choice)
    return best


@inlined
def _choose(options: CoreChoices, allotment: CoreAllotment, choice: Ints, op: int, new: int) -> None:
    choice[op], allotment.width[op], allotment.spread[op] = new, options.width[op, new], options.spread[op, new]
    allotment.fast[op], allotment.slow[op] = options.fast[op, new], options.slow[op, new]
