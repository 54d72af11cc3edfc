"""Exact plans of small graphs, by OR-Tools' CP-SAT."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from threadcast.core import Plan
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.bounds.allotment_lp import SHAVED
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.search.core_layout import lay_out

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

STEPS = 10_000_000
"""Units of time in the lower bound, at least: rounding an op down to a unit takes at most 1e-7 of the makespan, a
chain of 100 ops 1e-5."""

MOST_STEPS = 10_000_000_000
"""Units in the sum of all ops, at most: times cores, sums stay far below 2^63. Units are shorter than `STEPS` asks for
where some op is shorter than one."""

OPTIMAL = 1e-5
"""Distance from the bound, over the bound, up to which a plan is called optimal: what rounding may leave."""

DETERMINISTIC_PER_S = 0.06
"""Units of CP-SAT's deterministic time for a second of the budget. It counts 0.02 to 2 a second, mostly about 0.1 (AMD
EPYC): more, and the clock would end most searches; less, and most of the budget would be left."""


class _Search(NamedTuple):
    share: float
    """Of the budget."""
    linearization: int = 0
    interleave: bool = False
    from_below: bool = False
    """Whether to raise the bound first rather than to look for plans."""


SEARCHES = (_Search(1 / 4), _Search(1 / 4, 1), _Search(1 / 2, 1, interleave=True))
"""One after the other, by one worker, each from the best plan so far: 1,055 random graphs of up to five ops were proven
in 4 s each. The first proves small graphs soonest (one of 20 ops in 0.1 s, the others 14 s); the other two alone left
some of three to five ops unproven; the last improves plans of 40 to 60 ops most."""

CLOSING = (_Search(1 / 4), _Search(3 / 4, 1, from_below=True))
"""From a good plan on, one worker. On 35 graphs of 10 to 60 ops and up to 800 widths with the planner's plan, which
were 5.2 % above the bounds in the mean, 0.04 units of deterministic time left 3.6 %, in halves 3.8 %, `SEARCHES` 4.2 %.
"""

SHORTEST_S = 0.01
"""Seconds of a search for which no time is left."""

PORTFOLIO = (_Search(1.0, 1),)
"""By several workers."""

POLICY = "cp_sat"


@dataclass(frozen=True, slots=True)
class CpSatResult:
    """What CP-SAT has found.

    `plan`: its best, never worse than the hint; None where it had none and found nothing in time. `lower_bound_s` holds
    for every schedule with one op at a time on a core. `optimal`: `plan` is within `OPTIMAL` of it. `repeatable`:
    the same call gives the same result again, since every search ended by itself or by its deterministic time.
    """

    plan: Plan | None
    lower_bound_s: float
    optimal: bool
    repeatable: bool


def solve(
    problem: Problem,
    *,
    budget_s: float,
    workers: int = 1,
    seed: int = 0,
    hint: Plan | None = None,
    closing: bool = False,
    repeatable: bool = True,
    effort_s: float | None = None,
) -> CpSatResult:
    """Return the best plan that CP-SAT finds in about `budget_s` seconds, and its bound.

    Each op is an interval for every width that is faster than all narrower ones, of which one is chosen; the cores
    are one cumulative resource. Times are those of the better affinity, rounded down to a unit: a schedule of the
    real times stays one when starts and times are rounded down, so the rounded optimum is a lower bound. Only order
    and widths of a solution are used; `core_layout` makes them a legal plan in real times on cores, which can be
    longer where an op does not get cores of its better affinity. Made for up to some hundreds of ops.

    One worker goes through `SEARCHES`, or with `closing`, for a hint that is good already, through `CLOSING`; several
    run CP-SAT's portfolio, which is not repeatable. With `repeatable` searches end by the deterministic time for
    `effort_s` (None: for the budget), commonly after a part of the budget, or by the clock on a slow machine
    (`CpSatResult.repeatable` says whether); without it by the clock alone. Without a hint CP-SAT finds no plan in
    seconds for one in some hundred graphs, however small. ImportError without OR-Tools, which the extra `plan` brings;
    InvalidInput for a budget that is not positive, for less than one worker and for a hint of other ops.
    """
    from ortools.sat.python import cp_model

    if not 0 < budget_s < math.inf or workers < 1:
        raise InvalidInput(f"budget_s={budget_s}, workers={workers}: give seconds above 0 and at least one worker")
    end_s = time.monotonic() + budget_s
    bound_s = lower_bounds(problem).best_s
    choices = _choices(problem)
    unit_s = _unit_s(problem, choices, bound_s)
    best = _laid_out(problem, hint) if hint is not None else None
    effort_s = budget_s if effort_s is None else effort_s
    ended = True
    model = _Model(problem, choices, unit_s, bound_s)
    searches = CLOSING if closing else SEARCHES
    for search in searches if workers == 1 else PORTFOLIO:
        limit_s = max(min(budget_s * search.share, end_s - time.monotonic()), SHORTEST_S)
        solver = _solver(search, limit_s, workers, seed)
        if repeatable:
            solver.parameters.max_deterministic_time = effort_s * search.share * DETERMINISTIC_PER_S
        if best is not None:
            model.start_from(problem, best)
        status = solver.solve(model.model)
        ended &= workers == 1 and (status == cp_model.OPTIMAL or solver.wall_time < limit_s)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            made = model.plan(problem, solver)
            best = min((best, made), key=lambda plan: plan.makespan_s) if best is not None else made
        if status != cp_model.MODEL_INVALID:
            bound_s = max(bound_s, solver.best_objective_bound * unit_s * (1 - SHAVED))
        if status == cp_model.OPTIMAL:
            break
    if best is None:
        return CpSatResult(None, bound_s, False, ended)
    bound_s = min(bound_s, best.makespan_s)
    optimal = best.makespan_s <= bound_s * (1 + OPTIMAL)
    return CpSatResult(replace(best, lower_bound_s=bound_s), bound_s, optimal, ended)


def _solver(search: _Search, limit_s: float, workers: int, seed: int) -> cp_model.CpSolver:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # it would leave Ctrl-C to kill the process, also after the solve
    solver.parameters.num_workers = workers
    solver.parameters.interleave_search = search.interleave
    solver.parameters.linearization_level = search.linearization
    solver.parameters.use_objective_lb_search = search.from_below
    solver.parameters.random_seed = seed % 2**31  # it holds no more
    solver.parameters.max_time_in_seconds = limit_s
    # Without these two, graphs of three ops are not always proven within seconds.
    solver.parameters.use_overload_checker_in_cumulative = True
    solver.parameters.use_timetable_edge_finding_in_cumulative = True
    return solver


Choices = list[list[tuple[int, float]]]
"""For each op, positions in `Times.counts` and seconds, wider and faster ones later."""


def _choices(problem: Problem) -> Choices:
    """The widths of each op that are faster than all narrower ones; no others are needed in a best schedule."""
    found: Choices = []
    for row in problem.times.seconds.tolist():
        choices: list[tuple[int, float]] = []
        for position, seconds in enumerate(row):
            if seconds < (choices[-1][1] if choices else math.inf):
                choices.append((position, seconds))
        found.append(choices)
    return found


def _unit_s(problem: Problem, choices: Choices, bound_s: float) -> float:
    if bound_s <= 0:
        return 1.0  # no op takes any time
    total_s = float(problem.times.seconds.min(axis=1).sum())
    shortest_s = min(seconds for options in choices for _, seconds in options if seconds > 0)
    return max(min(bound_s / STEPS, shortest_s), total_s / MOST_STEPS)


def _laid_out(problem: Problem, hint: Plan) -> Plan:
    """The order and the widths of `hint` in the times of the problem, every op on a core of its own."""
    by_id = hint.by_id()
    if set(by_id) != set(problem.graph.ids):
        raise InvalidInput("the hint is a plan of other ops than the problem's")
    places = [by_id[op_id] for op_id in problem.graph.ids]
    position = [_position(problem, op, len(place.cores)) for op, place in enumerate(places)]
    return lay_out(problem, start=[place.start_s for place in places], position=position, policy=POLICY)


def _position(problem: Problem, op: int, width: int) -> int:
    """The fastest position of at most `width` cores, the narrowest that is offered where there is none."""
    seconds = problem.times.seconds[op]
    narrow = np.where(np.asarray(problem.times.counts) <= width, seconds, np.inf)
    return int(narrow.argmin() if np.isfinite(narrow).any() else np.isfinite(seconds).argmax())


class _Model:
    """Variables and constraints; `taken[op]` are the positions of an op with the literal of each."""

    def __init__(self, problem: Problem, choices: Choices, unit_s: float, bound_s: float) -> None:
        from ortools.sat.python import cp_model

        self._unit_s = unit_s
        self.model = model = cp_model.CpModel()
        graph, counts = problem.graph, problem.times.counts
        sizes = [[math.floor(seconds / unit_s) for _, seconds in options] for options in choices]
        horizon = sum(min(size) for size in sizes) + len(sizes)
        self.start: list[cp_model.IntVar] = []
        self.taken: list[list[tuple[int, cp_model.IntVar]]] = []
        end = []
        intervals, widths = [], []
        for options, op_sizes in zip(choices, sizes):
            start = model.new_int_var(0, horizon, "")
            literals = [model.new_bool_var("") for _ in options]
            model.add_exactly_one(literals)
            for (position, _), size, literal in zip(options, op_sizes, literals):
                intervals.append(model.new_optional_fixed_size_interval_var(start, size, literal, ""))
                widths.append(counts[position])
            self.start.append(start)
            self.taken.append([(position, literal) for (position, _), literal in zip(options, literals)])
            end.append(start + cp_model.LinearExpr.weighted_sum(literals, op_sizes))
        model.add_cumulative(intervals, widths, len(problem.machine))
        least = min(horizon, math.floor(bound_s / unit_s * (1 - 1e-9)))
        self.makespan = model.new_int_var(least, horizon, "")
        for op, after in enumerate(graph.successors):
            for successor in after:
                model.add(self.start[successor] >= end[op])
            if not after:
                model.add(self.makespan >= end[op])
        self._require_area(choices, sizes, counts, len(problem.machine))
        model.minimize(self.makespan)

    def _require_area(
        self, choices: Choices, sizes: Sequence[Sequence[int]], counts: Sequence[int], cores: int
    ) -> None:
        """All core-time fits: follows from the rest, but the linear relaxation needs it."""
        from ortools.sat.python import cp_model

        literals = [literal for options in self.taken for _, literal in options]
        work = [
            size * counts[position]
            for options, op_sizes in zip(choices, sizes)
            for (position, _), size in zip(options, op_sizes)
        ]
        self.model.add(cp_model.LinearExpr.weighted_sum(literals, work) <= cores * self.makespan)

    def plan(self, problem: Problem, solver: cp_model.CpSolver) -> Plan:
        """The solution that `solver` has found, in real times on cores."""
        start = [solver.value(variable) for variable in self.start]
        position = [next(p for p, literal in options if solver.value(literal)) for options in self.taken]
        return lay_out(problem, start=start, position=position, policy=POLICY)

    def start_from(self, problem: Problem, plan: Plan) -> None:
        """Start the search at `plan`, a schedule of the problem's times, and look for none that is longer."""
        by_id = plan.by_id()
        self.model.add(self.makespan <= math.floor(plan.makespan_s / self._unit_s) + len(self.start))
        self.model.clear_hints()
        for op_id, start, options in zip(problem.graph.ids, self.start, self.taken):
            place = by_id[op_id]
            taken = max(p for p, _ in options if problem.times.counts[p] <= len(place.cores))
            self.model.add_hint(start, math.floor(place.start_s / self._unit_s))
            for position, literal in options:
                self.model.add_hint(literal, position == taken)
        self.model.add_hint(self.makespan, math.floor(plan.makespan_s / self._unit_s))
