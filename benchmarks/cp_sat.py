"""Exact plans of small graphs by OR-Tools' CP-SAT, beside which `planner.py` holds the planner's own."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from threadcast.core import Placement, Plan
from threadcast.scheduler.bounds.allotment_lp import SHAVED
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.useful_widths import useful_widths
from threadcast.scheduler.search.core_layout import CoreLayout

OPTIMAL = 1e-5
"""Gap (distance from the bound over the bound) up to which a plan counts as optimal: rounding to units can leave it."""

STEPS = 10_000_000
"""Fewest units of time in the lower bound: rounding an op down to a unit loses at most 1e-7 of the makespan, rounding a
chain of 100 ops 1e-5."""
MOST_STEPS = 10_000_000_000
"""Most units in the sum of all ops, so that sums times cores stay far below 2^63. Units are shorter than `STEPS`
requires if an op would be shorter than a unit."""


class _Search(NamedTuple):
    """One run of the solver: its share of the budget, and its parameters."""

    share: float
    linearization: int = 0
    interleave: bool = False


SEARCHES = (_Search(1 / 4), _Search(1 / 4, 1), _Search(1 / 2, 1, interleave=True))
"""Searches that run one after the other, each from the best plan so far. They proved 1,055 random graphs of
up to five ops, within 4 s each. The first proves small graphs soonest (one of 20 ops in 0.1 s, the others in 14 s);
without it some graphs of three to five ops were left unproven. The last improves plans of 40 to 60 ops most."""


@dataclass(frozen=True, slots=True)
class Solved:
    """What CP-SAT has found.

    `plan`: the best plan; None where nothing was found in time. `lower_bound_s` holds for every schedule with one op at
    a time on a core. `optimal`: `plan` is within `OPTIMAL` of that bound.
    """

    plan: Plan | None
    lower_bound_s: float
    optimal: bool


def solve(problem: Problem, budget_s: float) -> Solved:
    """Return the best plan that CP-SAT finds on one core in about `budget_s` seconds, and its bound."""
    end_s = time.monotonic() + budget_s
    bound_s = lower_bounds(problem).best_s
    model = _Model(problem, bound_s)
    best: Plan | None = None
    for search in SEARCHES:
        solver = _solver(search, max(min(budget_s * search.share, end_s - time.monotonic()), 0.01))
        if best is not None:
            model.start_from(problem, best)
        status = solver.solve(model.model)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            found = model.plan(problem, solver)
            best = found if best is None or found.makespan_s < best.makespan_s else best
        bound_s = max(bound_s, solver.best_objective_bound * model.unit_s * (1 - SHAVED))
        if status == cp_model.OPTIMAL:
            break
    if best is None:
        return Solved(None, bound_s, False)
    bound_s = min(bound_s, best.makespan_s)
    return Solved(best, bound_s, best.makespan_s <= bound_s * (1 + OPTIMAL))


def _solver(search: _Search, limit_s: float) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = search.interleave
    solver.parameters.linearization_level = search.linearization
    solver.parameters.max_time_in_seconds = limit_s
    # Without these two, graphs of three ops are not always proven within seconds.
    solver.parameters.use_overload_checker_in_cumulative = True
    solver.parameters.use_timetable_edge_finding_in_cumulative = True
    return solver


class _Model:
    """The variables and constraints of a problem, in whole units of time.

    Each op has an interval for every useful width, of which one is chosen; the cores are one cumulative resource. Times
    are those of the better affinity, rounded down to units. A schedule stays valid when starts and times are rounded
    down, so the optimum of the rounded problem is a lower bound.
    """

    def __init__(self, problem: Problem, bound_s: float) -> None:
        graph, counts, seconds = problem.graph, problem.times.counts, problem.times.seconds
        positions = [np.flatnonzero(useful).tolist() for useful in useful_widths(seconds)]
        self.unit_s = _unit_s(problem, bound_s)
        self.model = model = cp_model.CpModel()
        sizes = [[math.floor(seconds[op, p] / self.unit_s) for p in own] for op, own in enumerate(positions)]
        horizon = sum(min(size) for size in sizes) + len(sizes)
        self._start: list[cp_model.IntVar] = []
        self._literals: list[list[tuple[int, cp_model.IntVar]]] = []
        """For each op, its positions in `Times.counts`, each with the variable that chooses it."""
        end, intervals, widths = [], [], []
        for own, op_sizes in zip(positions, sizes, strict=True):
            start = model.new_int_var(0, horizon, "")
            literals = [model.new_bool_var("") for _ in own]
            model.add_exactly_one(literals)
            for position, size, literal in zip(own, op_sizes, literals, strict=True):
                intervals.append(model.new_optional_fixed_size_interval_var(start, size, literal, ""))
                widths.append(counts[position])
            self._start.append(start)
            self._literals.append(list(zip(own, literals, strict=True)))
            end.append(start + cp_model.LinearExpr.weighted_sum(literals, op_sizes))
        model.add_cumulative(intervals, widths, len(problem.machine))
        least = min(horizon, math.floor(bound_s / self.unit_s * (1 - 1e-9)))
        self._makespan = model.new_int_var(least, horizon, "")
        for op, after in enumerate(graph.successors):
            for successor in after:
                model.add(self._start[successor] >= end[op])
            if not after:
                model.add(self._makespan >= end[op])
        # All core-time fits into the makespan: implied, but the linear relaxation needs it.
        work = [size * width for size, width in zip([s for row in sizes for s in row], widths, strict=True)]
        every = [literal for own in self._literals for _, literal in own]
        model.add(cp_model.LinearExpr.weighted_sum(every, work) <= len(problem.machine) * self._makespan)
        model.minimize(self._makespan)

    def plan(self, problem: Problem, solver: cp_model.CpSolver) -> Plan:
        """The plan with the order and widths of the solution that `solver` has found, in real times on cores."""
        start = [solver.value(variable) for variable in self._start]
        position = [next(p for p, literal in own if solver.value(literal)) for own in self._literals]
        return Plan(len(problem.machine), "cp_sat", _placements(problem, start, position))

    def start_from(self, problem: Problem, plan: Plan) -> None:
        """Let the search start from `plan`, and look only for plans no longer."""
        by_id = plan.by_id()
        self.model.add(self._makespan <= math.floor(plan.makespan_s / self.unit_s) + len(self._start))
        self.model.clear_hints()
        for op_id, start, own in zip(problem.graph.ids, self._start, self._literals, strict=True):
            place = by_id[op_id]
            chosen = max(p for p, _ in own if problem.times.counts[p] <= len(place.cores))
            self.model.add_hint(start, math.floor(place.start_s / self.unit_s))
            for position, literal in own:
                self.model.add_hint(literal, position == chosen)
        self.model.add_hint(self._makespan, math.floor(plan.makespan_s / self.unit_s))


def _placements(problem: Problem, start: Sequence[float], position: Sequence[int]) -> tuple[Placement, ...]:
    layout = CoreLayout(problem)
    return layout.placements(layout.sequence(start, np.asarray(position, dtype=np.int64)))


def _unit_s(problem: Problem, bound_s: float) -> float:
    seconds = problem.times.seconds
    total_s, shortest_s = float(seconds.min(axis=1).sum()), float(seconds[seconds > 0].min())
    return max(min(bound_s / STEPS, shortest_s), total_s / MOST_STEPS)
