"""From predicted curves to a plan, with the distance that it can at most have from the best one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from threadcast.core import Placement, Plan
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.interference.class_slowdown import ClassInterference
from threadcast.scheduler.interference.core_sharing import CoreSharing, Interference
from threadcast.scheduler.policies.best_setting import ROUNDING
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.policies.registry import check_name, create, options_of
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.search.denoising import steadied
from threadcast.scheduler.search.robust import percentiles_s, pessimistic, resampled
from threadcast.scheduler.simulation.simulator import Simulation

SEARCH = "search"
"""The name of plans that the search made."""

AUTO = ("critical_path", "strategies_1_3", "strategies_1_2_3", "strategies", "manual_grid")
"""Policies whose plans "auto" holds against the search's: those that put ops on hyper-threads, and that of the
framework's default, so that the plan is never worse than it by prediction."""

ALSO = (
    "ios", "mcpa", "cpa", "sequential", "strategies_1", "strategies_1_2", "fifo", "lp_rounding", "heft",
)  # fmt: skip
"""Policies that "auto" tries too while time is left, in the order of their promise and their haste."""

COMPARED_OPS = 2_000
"""Ops up to which "auto" tries policies: those of `AUTO` take a quarter second for each thousand."""

IOS_OPS, IOS_CANDIDATES = 250, 5_000
"""Ops up to which IOS is one of them, and the candidates that it then looks at: on DCGAN (144 ops) 0.35 s, with 20,000
1.2 s for a plan that is 0.1 % shorter; with 2,000 it is 1 to 9 % longer."""

OPTIONS: dict[str, dict[str, Any]] = {"manual_grid": {"oversubscribed": False}, "ios": {"candidates": IOS_CANDIDATES}}
"""What "auto" sets of these policies: time slices are dearer than the simulator takes them for."""

COMPARING = 0.2
"""Share of the budget that the search leaves to other policies."""

BUDGET_S = 2.0
"""Seconds after which the search ends; it mostly needs less."""

Candidate = tuple[str, tuple[Placement, ...], float]
"""A policy's name, where and when ops run, and the makespan in seconds."""


def plan(
    problem: Problem,
    *,
    policy: str = "auto",
    interference: Interference | None = None,
    robust: bool = False,
    budget_s: float = BUDGET_S,
    seed: int = 0,
    **options: Any,
) -> Plan:
    """Return how to run `problem`, as a plan: cores, threads, order, times, lower bound and gap.

    `policy` "auto" takes the shortest of "search" and, for graphs of at most COMPARED_OPS ops, the policies of `AUTO`
    and `ALSO`, none with more threads than the cores have; the name of a policy, what it does in simulation. The
    search ends after `budget_s`; if that does not cut it short, equal arguments give equal plans. In what is left of
    the budget CP-SAT, where OR-Tools is installed, raises the bound and improves the plan of a small graph (`closing`).
    Curves with wide intervals are steadied first (`steady`); the plan's times are those of the given curves.
    With `interference`, plans are compared by what they take under it. `robust` compares them by the 90th percentile of
    what they take on curves resampled from the forecasts' intervals, there without interference and with one op at a
    time on a core. These and `seed` are the search's; `options` go to the policy that is named. NotFound for an unknown
    policy, InvalidInput for an option that it has not.
    """
    check_name(policy, "auto", SEARCH)
    if policy not in ("auto", SEARCH):
        if robust or seed or budget_s != BUDGET_S:
            raise InvalidInput(f"robust, seed and budget_s are the search's; policy {policy!r} has none")
        return _of_policy(problem, policy, lower_bounds(problem).best_s, interference, options)
    if options:
        raise InvalidInput(f"options {sorted(options)} need a named policy: {policy!r} has none")
    if not (budget_s > 0 and math.isfinite(budget_s)):
        raise InvalidInput(f"budget_s={budget_s!r} must be a finite number of seconds above 0")
    if seed < 0:
        raise InvalidInput(f"seed={seed} must be at least 0")
    if not robust and (steady := steadied(problem)) is not None:
        made = plan(steady, policy=policy, interference=interference, budget_s=budget_s, seed=seed)
        _, placements, makespan_s = _replayed(problem, made, interference)
        bound_s = lower_bounds(problem).best_s
        return _planned(problem, (made.policy, placements, makespan_s), bound_s, interference)
    from threadcast.scheduler.search.cp_sat_closing import closed

    deadline_s = time.monotonic() + budget_s
    compared = policy == "auto" and len(problem.graph) <= COMPARED_OPS
    search_s = deadline_s - COMPARING * budget_s if compared else deadline_s
    bound_s = lower_bounds(problem).best_s
    candidates = list(_searched(problem, problem, bound_s, interference, deadline_s=search_s, seed=seed))
    if robust:
        worse = pessimistic(problem)
        worse_s = lower_bounds(worse).best_s
        candidates += _searched(problem, worse, worse_s, interference, deadline_s=search_s, seed=seed)
    if compared:
        best_s = math.inf if robust else min(c[2] for c in candidates)
        candidates += _others(problem, interference, best_s, deadline_s=deadline_s)
    values = _values(problem, candidates, robust, seed)
    alone = min((i for i, c in enumerate(candidates) if not _shares_cores(c[1])), key=values.__getitem__)
    hint = Plan(len(problem.machine), SEARCH, candidates[alone][1], bound_s)
    found = closed(problem, hint, left_s=deadline_s - time.monotonic(), budget_s=budget_s, seed=seed)
    if found is not None and found.plan is not None:
        improved = _replayed(problem, found.plan, interference)
        if improved[2] < candidates[alone][2] * (1 - ROUNDING):
            candidates.append(improved)
            values += _values(problem, [improved], robust, seed)
    closed_s = found.lower_bound_s if found is not None else bound_s
    best = candidates[min(range(len(values)), key=values.__getitem__)]
    return _planned(problem, best, bound_s, interference, closed_s=closed_s)


def plan_each(problem: Problem, policies: Sequence[str], *, interference: Interference | None = None) -> list[Plan]:
    """Return the plan of each of these policies, named as they are registered, in their order."""
    bound_s = lower_bounds(problem).best_s if policies else 0.0
    return [_of_policy(problem, name, bound_s, interference, {}) for name in policies]


def _of_policy(
    problem: Problem, name: str, bound_s: float, interference: Interference | None, options: dict[str, Any]
) -> Plan:
    run = _simulated(problem, name, interference, options)
    return _planned(problem, (run.policy.name, run.placements(), run.now_s), bound_s, interference)


def _searched(
    problem: Problem,
    searched: Problem,
    bound_s: float,
    interference: Interference | None,
    *,
    deadline_s: float,
    seed: int,
) -> Iterator[Candidate]:
    """The shortest plans for the curves of `searched`, on their real cores, at the times that `problem` has."""
    from threadcast.scheduler.search.shortest import shortest

    apart = interference.apart() if isinstance(interference, ClassInterference) and searched is problem else None
    for placements in shortest(searched, bound_s=bound_s, seed=seed, deadline_s=deadline_s, apart=apart):
        if interference is None and searched is problem:
            yield SEARCH, placements, max(at.finish_s for at in placements)
        else:
            yield _replayed(problem, Plan(len(problem.machine), SEARCH, placements), interference)


def _replayed(problem: Problem, made: Plan, interference: Interference | None) -> Candidate:
    if interference is None and not _shares_cores(made.ops):
        from threadcast.scheduler.search.replay import replayed  # brings numba along

        placements = replayed(problem, made.ops)
        return SEARCH, placements, max(at.finish_s for at in placements)
    run = Simulation(PlanReplay(problem, plan=made), interference=interference)
    run.run()
    return SEARCH, run.placements(), run.now_s


def _others(
    problem: Problem, interference: Interference | None, best_s: float, *, deadline_s: float
) -> Iterator[Candidate]:
    """Plans of other policies, each shorter, by more than rounding, than `best_s` and than those before it."""
    for name in (*AUTO, *ALSO):
        if (name in ALSO and time.monotonic() >= deadline_s) or (name == "ios" and len(problem.graph) > IOS_OPS):
            continue
        run = _simulated(problem, name, interference, OPTIONS.get(name, {}), give_up_s=best_s * (1 - ROUNDING))
        if run.done:
            yield run.policy.name, run.placements(), run.now_s
            best_s = min(best_s, run.now_s)


def _values(problem: Problem, candidates: Sequence[Candidate], robust: bool, seed: int) -> list[float]:
    """What makes one candidate better than another: less of it."""
    if not robust:
        return [makespan_s for _, _, makespan_s in candidates]
    return percentiles_s([placements for _, placements, _ in candidates], resampled(problem, seed=seed))


def _simulated(
    problem: Problem,
    name: str,
    interference: Interference | None,
    options: dict[str, Any],
    *,
    give_up_s: float = math.inf,
) -> Simulation:
    if interference is not None and "interference" in options_of(name):
        options = {"interference": interference, **options}
    run = Simulation(create(name, problem, **options), interference=interference)
    run.run(give_up_s)
    return run


def _planned(
    problem: Problem,
    candidate: Candidate,
    bound_s: float,
    interference: Interference | None,
    *,
    closed_s: float = 0.0,
) -> Plan:
    """The plan of `candidate`; `closed_s` is a higher bound, which holds with one op at a time on a core."""
    name, ops, makespan_s = candidate
    if _shares_cores(ops):
        bound_s /= (interference or CoreSharing(problem.machine)).core_throughput
    else:
        bound_s = max(bound_s, closed_s)
    bound_s = min(bound_s, makespan_s)  # a sum in another order may be a rounding error larger
    return Plan(len(problem.machine), name, ops, bound_s, curves_from=problem.curves.model)


def _shares_cores(ops: Sequence[Placement]) -> bool:
    return any(op.hardware_thread or op.threads > len(op.cores) for op in ops)
