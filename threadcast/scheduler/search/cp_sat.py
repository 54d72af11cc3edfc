"""Exact plans of small graphs, by OR-Tools' CP-SAT."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from threadcast.core import Plan
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.bounds.allotment_lp import SHAVED
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.useful_widths import useful_widths
from threadcast.scheduler.search.core_layout import lay_out
from threadcast.scheduler.search.cp_sat_model import POLICY, ScheduleModel, choices_of, unit_s

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

OPTIMAL = 1e-5
"""Gap (distance from the bound over the bound) up to which a plan counts as optimal: rounding to units can leave it."""

DETERMINISTIC_PER_S = 0.06
"""Units of CP-SAT's deterministic time per second of the budget. CP-SAT counts 0.02 to 2 units a second, mostly about
0.1 (AMD EPYC). With a larger value the clock would end most searches; with a smaller one most of the budget would be
left."""


class _Search(NamedTuple):
    """One run of the solver: its share of the budget, and its parameters."""

    share: float
    linearization: int = 0
    interleave: bool = False
    from_below: bool = False
    """Whether to raise the bound first rather than to look for plans."""


SEARCHES = (_Search(1 / 4), _Search(1 / 4, 1), _Search(1 / 2, 1, interleave=True))
"""Searches that run one after the other, each from the best plan so far. They proved 1,055 random graphs of
up to five ops, within 4 s each. The first proves small graphs soonest (one of 20 ops in 0.1 s, the others in 14 s);
without it some graphs of three to five ops were left unproven. The last improves plans of 40 to 60 ops most."""

CLOSING = (_Search(1 / 4), _Search(3 / 4, 1, from_below=True))
"""Searches that start from a good plan. On 35 graphs of 10 to 60 ops and up to 800 widths, the planner's
plans were 5.2 % above the bounds in the mean. With 0.04 units of deterministic time these searches left 3.6 %, in equal
halves 3.8 %, and `SEARCHES` left 4.2 %."""

SHORTEST_S = 0.01
"""Shortest time limit of a search in seconds, also when no time is left."""

CLOSING_WIDTHS = 600
"""Most useful widths of all ops together for which `close_gap` is tried: 60 ops on 4 or 16 cores, 20 on 48. For more,
CP-SAT found nothing in a second."""
CLOSING_EFFORT_S = 1.0
"""Most seconds of `close_gap` on a slow core; mostly half of that (AMD EPYC)."""
CLOSING_SHARE, CLOSING_LEAST = 0.5, 0.1
"""Shares of the planner's budget: the most effort of `close_gap`, and the least time that must be left for it."""


@dataclass(frozen=True, slots=True)
class CpSatResult:
    """What CP-SAT has found.

    `plan`: the best plan, never longer than the hint; None where there was no hint and nothing was found in time.
    `lower_bound_s` holds for every schedule with one op at a time on a core. `optimal`: `plan` is within `OPTIMAL` of
    that bound.
    """

    plan: Plan | None
    lower_bound_s: float
    optimal: bool


def solve(
    problem: Problem,
    *,
    budget_s: float,
    seed: int = 0,
    hint: Plan | None = None,
    closing: bool = False,
    repeatable: bool = True,
    effort_s: float | None = None,
) -> CpSatResult:
    """Return the best plan that CP-SAT finds in about `budget_s` seconds, and its bound.

    `cp_sat_model.ScheduleModel` describes the model. `core_layout` turns the solution into a legal plan in real times
    on cores; it can be longer where an op does not get cores of its better affinity. Meant for up to some hundred ops.

    It runs `SEARCHES`, or `CLOSING` with `closing`, which is for a `hint` that is good already. With `repeatable`,
    searches end by the deterministic time for `effort_s` seconds (None: for the budget). That is mostly before the
    budget ends; on a slow machine the clock may end them. Without it, only the clock ends them. Without a hint, CP-SAT
    finds no plan within seconds for about one in some hundred graphs, even small ones.

    ImportError without OR-Tools, which the extra `plan` installs. InvalidInput for a budget that is not positive, and
    for a hint with other ops.
    """
    from ortools.sat.python import cp_model

    if not 0 < budget_s < math.inf:
        raise InvalidInput(f"budget_s={budget_s}: give seconds above 0")
    end_s = time.monotonic() + budget_s
    bound_s = lower_bounds(problem).best_s
    choices = choices_of(problem)
    unit = unit_s(problem, choices, bound_s)
    best = _laid_out(problem, hint) if hint is not None else None
    effort_s = budget_s if effort_s is None else effort_s
    model = ScheduleModel(problem, choices, unit, bound_s)
    for search in CLOSING if closing else SEARCHES:
        limit_s = max(min(budget_s * search.share, end_s - time.monotonic()), SHORTEST_S)
        solver = _solver(search, limit_s, seed)
        if repeatable:
            solver.parameters.max_deterministic_time = effort_s * search.share * DETERMINISTIC_PER_S
        if best is not None:
            model.start_from(problem, best)
        status = solver.solve(model.model)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            found = model.plan(problem, solver)
            best = found if best is None or found.makespan_s < best.makespan_s else best
        if status != cp_model.MODEL_INVALID:
            bound_s = max(bound_s, solver.best_objective_bound * unit * (1 - SHAVED))
        if status == cp_model.OPTIMAL:
            break
    if best is None:
        return CpSatResult(None, bound_s, False)
    best = replace(best, lower_bound_s=min(bound_s, best.makespan_s))
    return CpSatResult(best, best.lower_bound_s, is_optimal(best))


def is_optimal(plan: Plan) -> bool:
    """Return whether no plan is shorter than this one by more than rounding to units of time."""
    return plan.makespan_s <= plan.lower_bound_s * (1 + OPTIMAL)


def close_gap(problem: Problem, plan: Plan, *, left_s: float, budget_s: float, seed: int) -> CpSatResult | None:
    """Return, for a small graph, a bound at least as high and a plan no longer than `plan`, within `left_s` seconds.

    `plan` must have one op at a time on a core; its `lower_bound_s` is the bound known so far. None where `plan` is
    optimal, too little of `budget_s` is left, the graph is too large, or OR-Tools is not installed. As long as `left_s`
    suffices, the result depends only on the other arguments.
    """
    if is_optimal(plan) or left_s < CLOSING_LEAST * budget_s:
        return None
    if useful_widths(problem.times.seconds).sum() > CLOSING_WIDTHS or find_spec("ortools") is None:
        return None
    effort_s = min(CLOSING_EFFORT_S, CLOSING_SHARE * budget_s)
    return solve(problem, budget_s=left_s, effort_s=effort_s, seed=seed, hint=plan, closing=True)


def _solver(search: _Search, limit_s: float, seed: int) -> cp_model.CpSolver:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # it would leave Ctrl-C to kill the process, also after the solve
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = search.interleave
    solver.parameters.linearization_level = search.linearization
    solver.parameters.use_objective_lb_search = search.from_below
    solver.parameters.random_seed = seed % 2**31  # it holds no more
    solver.parameters.max_time_in_seconds = limit_s
    # Without these two, graphs of three ops are not always proven within seconds.
    solver.parameters.use_overload_checker_in_cumulative = True
    solver.parameters.use_timetable_edge_finding_in_cumulative = True
    return solver


def _laid_out(problem: Problem, hint: Plan) -> Plan:
    """A plan with the order and widths of `hint`, in the problem's times, with one op at a time on a core."""
    by_id = hint.by_id()
    if set(by_id) != set(problem.graph.ids):
        raise InvalidInput("the hint is a plan of other ops than the problem's")
    places = [by_id[op_id] for op_id in problem.graph.ids]
    position = [_position(problem, op, len(place.cores)) for op, place in enumerate(places)]
    return lay_out(problem, start=[place.start_s for place in places], position=position, policy=POLICY)


def _position(problem: Problem, op: int, width: int) -> int:
    """Position of the op's fastest count of at most `width`; where there is none, of its smallest offered count."""
    seconds = problem.times.seconds[op]
    narrow = np.where(np.asarray(problem.times.counts) <= width, seconds, np.inf)
    return int(narrow.argmin() if np.isfinite(narrow).any() else np.isfinite(seconds).argmax())
