"""A problem as a constraint model for OR-Tools' CP-SAT, in whole units of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from threadcast.core import Plan
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.useful_widths import useful_widths
from threadcast.scheduler.search.annealing import TINY_S
from threadcast.scheduler.search.core_layout import lay_out

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

STEPS = 10_000_000
"""Fewest units of time in the lower bound: rounding an op down to a unit loses at most 1e-7 of the makespan, rounding a
chain of 100 ops 1e-5."""

MOST_STEPS = 10_000_000_000
"""Most units in the sum of all ops, so that sums times cores stay far below 2^63. Units are shorter than `STEPS`
requires if an op would be shorter than a unit."""

POLICY = "cp_sat"
"""The policy name in CP-SAT's plans."""

Choices = list[list[tuple[int, float]]]
"""For each op, (position in `Times.counts`, seconds) of its useful counts, from the narrowest to the fastest."""


def choices_of(problem: Problem) -> Choices:
    """Return the useful thread counts of each op; no others are needed in a best schedule."""
    seconds = problem.times.seconds
    return [
        [(position, float(row[position])) for position in np.flatnonzero(useful).tolist()]
        for row, useful in zip(seconds, useful_widths(seconds))
    ]


def unit_s(problem: Problem, choices: Choices, bound_s: float) -> float:
    """Return the unit of time for a problem with this lower bound, in seconds."""
    if bound_s <= 0:
        return 1.0  # no op takes any time
    total_s = float(problem.times.seconds.min(axis=1).sum())
    shortest_s = min(seconds for options in choices for _, seconds in options if seconds > 0)
    return max(min(bound_s / STEPS, shortest_s), total_s / MOST_STEPS, TINY_S)


class ScheduleModel:
    """The variables and constraints of a problem.

    Each op has an interval for every useful width, of which one is chosen; the cores are one cumulative resource. Times
    are those of the better affinity, rounded down to units. A schedule stays valid when starts and times are rounded
    down, so the optimum of the rounded problem is a lower bound.
    """

    def __init__(self, problem: Problem, choices: Choices, unit_s: float, bound_s: float) -> None:
        from ortools.sat.python import cp_model

        self._unit_s = unit_s
        self.model = model = cp_model.CpModel()
        graph, counts = problem.graph, problem.times.counts
        sizes = [[math.floor(seconds / unit_s) for _, seconds in options] for options in choices]
        horizon = sum(min(size) for size in sizes) + len(sizes)
        self._start: list[cp_model.IntVar] = []
        self._literals: list[list[tuple[int, cp_model.IntVar]]] = []
        """For each op, its positions in `Times.counts`, each with the variable that chooses it."""
        end = []
        intervals, widths = [], []
        for options, op_sizes in zip(choices, sizes):
            start = model.new_int_var(0, horizon, "")
            literals = [model.new_bool_var("") for _ in options]
            model.add_exactly_one(literals)
            for (position, _), size, literal in zip(options, op_sizes, literals):
                intervals.append(model.new_optional_fixed_size_interval_var(start, size, literal, ""))
                widths.append(counts[position])
            self._start.append(start)
            self._literals.append([(position, literal) for (position, _), literal in zip(options, literals)])
            end.append(start + cp_model.LinearExpr.weighted_sum(literals, op_sizes))
        model.add_cumulative(intervals, widths, len(problem.machine))
        least = min(horizon, math.floor(bound_s / unit_s * (1 - 1e-9)))
        self.makespan = model.new_int_var(least, horizon, "")
        for op, after in enumerate(graph.successors):
            for successor in after:
                model.add(self._start[successor] >= end[op])
            if not after:
                model.add(self.makespan >= end[op])
        self._require_area(choices, sizes, counts, len(problem.machine))
        model.minimize(self.makespan)

    def _require_area(
        self, choices: Choices, sizes: Sequence[Sequence[int]], counts: Sequence[int], cores: int
    ) -> None:
        """Require that all core-time fits into the makespan; implied, but the linear relaxation needs it."""
        from ortools.sat.python import cp_model

        literals = [literal for options in self._literals for _, literal in options]
        work = [
            size * counts[position]
            for options, op_sizes in zip(choices, sizes)
            for (position, _), size in zip(options, op_sizes)
        ]
        self.model.add(cp_model.LinearExpr.weighted_sum(literals, work) <= cores * self.makespan)

    def plan(self, problem: Problem, solver: cp_model.CpSolver) -> Plan:
        """Return a plan with the order and widths of the solution that `solver` has found, in real times on cores."""
        start = [solver.value(variable) for variable in self._start]
        position = [next(p for p, literal in options if solver.value(literal)) for options in self._literals]
        return lay_out(problem, start=start, position=position, policy=POLICY)

    def start_from(self, problem: Problem, plan: Plan) -> None:
        """Let the search start from `plan`, a schedule of the problem's times, and look only for plans no longer."""
        by_id = plan.by_id()
        self.model.add(self.makespan <= math.floor(plan.makespan_s / self._unit_s) + len(self._start))
        self.model.clear_hints()
        for op_id, start, options in zip(problem.graph.ids, self._start, self._literals):
            place = by_id[op_id]
            chosen = max(p for p, _ in options if problem.times.counts[p] <= len(place.cores))
            self.model.add_hint(start, math.floor(place.start_s / self._unit_s))
            for position, literal in options:
                self.model.add_hint(literal, position == chosen)
        self.model.add_hint(self.makespan, math.floor(plan.makespan_s / self._unit_s))
