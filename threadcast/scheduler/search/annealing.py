"""Simulated annealing of a schedule, for graphs that can be scheduled anew thousands of times."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from threadcast.scheduler.kernels.annealing_loop import CoreChoices, anneal
from threadcast.scheduler.kernels.core_assignment import CoreGraph
from threadcast.scheduler.kernels.insertion import empty_profile, insert
from threadcast.scheduler.kernels.instance import Allotment, Floats, Instance, Ints
from threadcast.scheduler.kernels.random_moves import Cooling, RandomState
from threadcast.scheduler.search.solution import Solution

FIRST, LAST = 0.02, 0.0005
"""Temperatures at the beginning and at the end, relative to the makespan."""
TINY_S = float(np.finfo(np.float64).tiny)
"""Least temperature in seconds: a share of a makespan below it may be rounded to 0."""
CHUNKS = 16
"""Number of parts of an annealing; the clock is read before each."""


def annealed(
    instance: Instance,
    solution: Solution,
    *,
    moves: int,
    random: RandomState,
    enough_s: float,
    is_over: Callable[[], bool],
) -> Solution:
    """Return a schedule no longer than `solution`, found by up to `moves` random changes of it.

    The changes are made in `CHUNKS` parts, with justification after each. Annealing ends early when `is_over()` is true
    before a part, or at a makespan of at most `enough_s` seconds.
    """
    order, choice = solution.order(instance), solution.choice.copy()
    order, best_s = justified(instance, order, choice)
    group = np.zeros(instance.cores, dtype=np.int64)
    graph = CoreGraph(instance.predecessors, instance.successors, group)
    alike = np.zeros(instance.width.shape, dtype=np.bool_)
    options = CoreChoices(instance.width, instance.seconds, instance.seconds, alike, instance.choices)
    for chunk in range(CHUNKS):
        if is_over():
            break
        steps = cooling(best_s, chunk, first=FIRST, moves=moves // CHUNKS, enough_s=enough_s)
        with np.errstate(over="ignore"):  # the random numbers' product, where it is not compiled
            anneal(graph, options, False, order, choice, random, steps)
        order, best_s = justified(instance, order, choice)
    start = np.empty(instance.n_ops)
    _insert(instance, order, instance.allotment(choice), start)
    return Solution(choice, start, best_s)


def cooling(makespan_s: float, chunk: int, *, first: float, moves: int, enough_s: float) -> Cooling:
    """Return the cooling of part number `chunk` of `CHUNKS`; over all parts the temperature falls to `LAST`.

    It starts at `first`; both are relative to the makespan. `moves` is the number of moves of this part.
    """
    first_s, last_s = (max(makespan_s * first * (LAST / first) ** (k / CHUNKS), TINY_S) for k in (chunk, chunk + 1))
    return Cooling(moves, first_s, last_s, enough_s)


def random_state(generator: np.random.Generator) -> RandomState:
    """Return a random-number state for compiled loops."""
    return np.array([generator.integers(1, 2**63)], dtype=np.uint64)


def justified(instance: Instance, order: Ints, choice: Ints) -> tuple[Ints, float]:
    """Return an order whose schedule is no longer, and its makespan: shift all ops to the end, then to the start.

    Source: Valls, Ballestin and Quintanilla, "Justification and RCPSP", 2005.
    """
    allotment = instance.allotment(choice)
    backwards = instance.reversed()
    best_order, best_s = order, math.inf
    while True:
        start = np.empty(len(order))
        found_s = _insert(instance, best_order, allotment, start)
        if not found_s < best_s:
            return best_order, best_s
        best_s, place = found_s, _places(best_order)
        last_first = np.lexsort((-place, -(start + allotment.seconds))).astype(np.int64)
        mirrored = np.empty(len(order))
        _insert(backwards, last_first, allotment, mirrored)
        candidate = np.lexsort((place, -(mirrored + allotment.seconds))).astype(np.int64)
        if _insert(instance, candidate, allotment, start) >= best_s:
            return best_order, best_s
        best_order = candidate


def _insert(instance: Instance, order: Ints, allotment: Allotment, start: Floats) -> float:
    """Fill `start` with the schedule of `order`; return its makespan."""
    n = len(order)
    profile, nothing = empty_profile(n), np.zeros(n)
    return float(insert(order, instance.predecessors, allotment, instance.cores, nothing, math.inf, start, profile))


def _places(order: Ints) -> Ints:
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order), dtype=np.int64)
    return place
