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
"""Distance from the bound, over the bound, up to which a plan is called optimal: what rounding to units may leave."""

DETERMINISTIC_PER_S = 0.06
"""Units of CP-SAT's deterministic time for a second of the budget. It counts 0.02 to 2 a second, mostly about 0.1 (AMD
EPYC): more, and the clock would end most searches; less, and most of the budget would be left."""


class _Search(NamedTuple):
    """One run of the solver: its share of the budget, and its parameters."""

    share: float
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

CLOSING_WIDTHS = 600
"""Useful widths of all ops together up to which `close_gap` is tried: 60 ops on 4 or 16 cores, 20 on 48. Beyond, CP-SAT
found nothing in a second."""
CLOSING_EFFORT_S = 1.0
"""What `close_gap` takes at most on a slow core; mostly half of that (AMD EPYC)."""
CLOSING_SHARE, CLOSING_LEAST = 0.5, 0.1
"""Of the planner's budget: the most effort of `close_gap`, and what must be left for it."""


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

    `cp_sat_model.ScheduleModel` says what is solved. `core_layout` makes the solution a legal plan in real times on
    cores, which can be longer where an op does not get cores of its better affinity. Made for up to some hundred ops.

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
    choices = choices_of(problem)
    unit = unit_s(problem, choices, bound_s)
    best = _laid_out(problem, hint) if hint is not None else None
    effort_s = budget_s if effort_s is None else effort_s
    ended = True
    model = ScheduleModel(problem, choices, unit, bound_s)
    searches = PORTFOLIO if workers > 1 else CLOSING if closing else SEARCHES
    for search in searches:
        limit_s = max(min(budget_s * search.share, end_s - time.monotonic()), SHORTEST_S)
        solver = _solver(search, limit_s, workers, seed)
        if repeatable:
            solver.parameters.max_deterministic_time = effort_s * search.share * DETERMINISTIC_PER_S
        if best is not None:
            model.start_from(problem, best)
        status = solver.solve(model.model)
        ended &= workers == 1 and (status == cp_model.OPTIMAL or solver.wall_time < limit_s)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            found = model.plan(problem, solver)
            best = found if best is None or found.makespan_s < best.makespan_s else best
        if status != cp_model.MODEL_INVALID:
            bound_s = max(bound_s, solver.best_objective_bound * unit * (1 - SHAVED))
        if status == cp_model.OPTIMAL:
            break
    if best is None:
        return CpSatResult(None, bound_s, False, ended)
    best = replace(best, lower_bound_s=min(bound_s, best.makespan_s))
    return CpSatResult(best, best.lower_bound_s, is_optimal(best), ended)


def is_optimal(plan: Plan) -> bool:
    """Return whether no plan is shorter, but for what rounding to units of time may leave."""
    return plan.makespan_s <= plan.lower_bound_s * (1 + OPTIMAL)


def close_gap(problem: Problem, plan: Plan, *, left_s: float, budget_s: float, seed: int) -> CpSatResult | None:
    """Return a higher bound and a plan that is no longer than `plan`, within `left_s`, for a small graph.

    None where `plan` is optimal, too little is left of `budget_s`, the graph is too large, or OR-Tools is not
    installed. `plan` has one op at a time on a core, its `lower_bound_s` is the bound that is known. Equal arguments
    but for `left_s` give equal results if that suffices.
    """
    if is_optimal(plan) or left_s < CLOSING_LEAST * budget_s:
        return None
    if useful_widths(problem.times.seconds).sum() > CLOSING_WIDTHS or find_spec("ortools") is None:
        return None
    effort_s = min(CLOSING_EFFORT_S, CLOSING_SHARE * budget_s)
    return solve(problem, budget_s=left_s, effort_s=effort_s, seed=seed, hint=plan, closing=True)


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
