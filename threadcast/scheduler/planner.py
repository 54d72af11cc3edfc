"""Makes a plan from predicted curves, with a bound on how far the plan can be from the best one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from threadcast.core import Placement, Plan
from threadcast.core.arguments import check
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.interference.core_sharing import CoreSharing, Interference
from threadcast.scheduler.policies.best_setting import ROUNDING
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.policies.registry import PLANNERS, check_name, create, options_of
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.hardware_threads import any_shares_cores
from threadcast.scheduler.search.denoising import denoised
from threadcast.scheduler.search.replay import replayed
from threadcast.scheduler.simulation.simulator import Simulation

SEARCH = "search"
"""The policy name of plans that the planner's own search finds."""

AUTO = ("critical_path", "strategies_1_3", "strategies_1_2_3", "strategies", "manual_grid")
"""Policies whose plans "auto" always compares with the search's: policies that use hyper-threads, and the settings that
a user finds by hand. So the plan is, by prediction, never worse than the framework's default."""

COMPARED_OPS = 2_000
"""Most ops of a graph for which "auto" tries policies: those of `AUTO` take 0.25 s for each thousand ops."""

OPTIONS: dict[str, dict[str, Any]] = {"manual_grid": {"oversubscribed": False}}
"""Options that "auto" passes to these policies. Oversubscription is left out, because time slices cost more than the
simulator predicts."""

COMPARING = 0.2
"""Share of the time budget that the search leaves to other policies."""

BUDGET_S = 2.0
"""Default time budget in seconds; the search mostly ends earlier."""

QUICK_S = 0.1
"""Time budget in seconds for a first plan that somebody waits for. With policy "search", a planner process that has
loaded its libraries answers within 0.3 s for 150 ops on 2 cores and for 500 on 16. Its plans are up to 0.7 % longer
than those of the default budget (`docs/figures/planner.md`)."""


def plan(
    problem: Problem,
    *,
    policy: str = "auto",
    interference: Interference | None = None,
    budget_s: float = BUDGET_S,
    seed: int = 0,
    **options: Any,
) -> Plan:
    """Return a plan for `problem`: the cores, threads, start and finish of each op, a lower bound and the gap to it.

    `policy` is one of these:

    - "search": the planner's own search.
    - "auto": the shortest of the search's plan and, for graphs of at most 2,000 ops, the plans of other policies. None
      of them gives a core more threads than it has hardware threads.
    - the name of a policy: the plan is what this policy does in simulation. `options` are passed to it.

    The search ends after `budget_s` seconds; compiling its loops, once after an install, does not count. If the budget
    does not cut it short, equal arguments give equal plans. Curves with wide intervals are denoised first
    (`denoising`); the plan's times are those of the given curves.

    With `interference`, plans are compared by their makespan under it. `budget_s` and `seed` only apply to "search" and
    "auto".

    NotFound for an unknown policy. InvalidInput for an option that the policy does not have, for arguments of another
    type, and for numbers outside their range.
    """
    check_name(policy, *PLANNERS)
    known = interference is None or hasattr(interference, "slowdowns")
    check(known, "interference", interference, "an Interference or None")
    check(isinstance(budget_s, Real), "budget_s", budget_s, "a number of seconds")
    check(isinstance(seed, Integral), "seed", seed, "a whole number")
    if policy not in PLANNERS:
        if seed or budget_s != BUDGET_S:
            raise InvalidInput(f"seed and budget_s are the search's; policy {policy!r} has none")
        return _plan_of_policy(problem, policy, lower_bounds(problem).best_s, interference, options)
    if options:
        raise InvalidInput(f"options {sorted(options)} need a named policy: {policy!r} has none")
    check(0 < budget_s < math.inf, "budget_s", budget_s, "a finite number of seconds above 0")
    check(seed >= 0, "seed", seed, "at least 0")
    from threadcast.scheduler.compile_planner import compile_planner  # also a script, which must not be imported before

    compile_planner()
    without_noise = denoised(problem)
    best = _PlanSearch(without_noise or problem, interference, seed, budget_s).run(compare=policy == "auto")
    if without_noise is not None:
        best = _replayed(problem, best, interference)
    return _plan_of(problem, best, lower_bounds(problem).best_s, interference)


def plan_each(problem: Problem, policies: Sequence[str], *, interference: Interference | None = None) -> list[Plan]:
    """Return the plans of the policies with these registered names, in the same order."""
    bound_s = lower_bounds(problem).best_s if policies else 0.0
    return [_plan_of_policy(problem, name, bound_s, interference, {}) for name in policies]


class _Candidate(NamedTuple):
    """A plan to compare with others: the policy that made it, where and when ops run, and the makespan in seconds."""

    policy: str
    ops: tuple[Placement, ...]
    makespan_s: float


class _PlanSearch:
    """Looks for the best plan of a problem within a time budget; call `run` once."""

    def __init__(self, problem: Problem, interference: Interference | None, seed: int, budget_s: float) -> None:
        self._problem, self._interference, self._seed = problem, interference, seed
        self._budget_s, self._deadline_s = budget_s, time.monotonic() + budget_s

    def run(self, *, compare: bool) -> _Candidate:
        """Return the best plan found. With `compare`, other policies are tried too if the graph is small enough."""
        compare = compare and len(self._problem.graph) <= COMPARED_OPS
        end_s = self._deadline_s - (COMPARING * self._budget_s if compare else 0.0)
        candidates = list(self._search(end_s))
        if compare:
            candidates += self._other_policies(min(map(_makespan_s, candidates)))
        return min(candidates, key=_makespan_s)

    def _search(self, end_s: float) -> Iterator[_Candidate]:
        """The search's shortest plans, on real cores."""
        from threadcast.scheduler.search.shortest import shortest

        bound_s = lower_bounds(self._problem).best_s
        for ops in shortest(self._problem, bound_s=bound_s, seed=self._seed, deadline_s=end_s):
            candidate = _Candidate(SEARCH, ops, max(at.finish_s for at in ops))
            known = self._interference is None
            yield candidate if known else _replayed(self._problem, candidate, self._interference)

    def _other_policies(self, best_s: float) -> Iterator[_Candidate]:
        """Plans of other policies, each shorter than `best_s` and the ones before it, by more than rounding."""
        problem, interference = self._problem, self._interference
        for name in AUTO:
            options = OPTIONS.get(name, {})
            run = _simulated(problem, name, interference, options, give_up_s=best_s * (1 - ROUNDING))
            if run.done:
                yield _Candidate(run.policy.name, run.placements(), run.now_s)
                best_s = min(best_s, run.now_s)


def _plan_of_policy(
    problem: Problem,
    name: str,
    bound_s: float,
    interference: Interference | None,
    options: dict[str, Any],
) -> Plan:
    run = _simulated(problem, name, interference, options)
    return _plan_of(problem, _Candidate(run.policy.name, run.placements(), run.now_s), bound_s, interference)


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


def _replayed(problem: Problem, candidate: _Candidate, interference: Interference | None) -> _Candidate:
    """The candidate with the problem's times and under `interference`; ops keep their cores and their order on them."""
    if interference is None and not any_shares_cores(candidate.ops):
        ops = replayed(problem, candidate.ops)
        return candidate._replace(ops=ops, makespan_s=max(at.finish_s for at in ops))
    replay = PlanReplay(problem, plan=Plan(len(problem.machine), candidate.policy, candidate.ops))
    run = Simulation(replay, interference=interference)
    run.run()
    return candidate._replace(ops=run.placements(), makespan_s=run.now_s)


def _plan_of(problem: Problem, candidate: _Candidate, bound_s: float, interference: Interference | None) -> Plan:
    """The plan of `candidate`, with the bound that holds for it."""
    name, ops, makespan_s = candidate
    if any_shares_cores(ops):
        bound_s /= (interference or CoreSharing(problem.machine)).core_throughput
    bound_s = min(bound_s, makespan_s)  # a sum in another order may be a rounding error larger
    return Plan(len(problem.machine), name, ops, bound_s, curves_from=problem.curves.model)


def _makespan_s(candidate: _Candidate) -> float:
    return candidate.makespan_s
