"""From predicted curves to a plan, with the distance that it can at most have from the best one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from threadcast.core import Plan
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.bounds import lower_bounds
from threadcast.scheduler.interference import CoreSharing, Interference
from threadcast.scheduler.policies.base import Problem
from threadcast.scheduler.policies.registry import create, options_of
from threadcast.scheduler.simulator import Simulation

AUTO = ("critical_path", "strategies_1_3", "strategies_1_2_3", "strategies", "manual_grid")
"""Policies of which "auto" takes the best in simulation, the first among equals. The grid of the last one holds what
"fifo" does, so the framework's default is never better than the plan by prediction."""


def plan(problem: Problem, *, policy: str = "auto", interference: Interference | None = None, **options: Any) -> Plan:
    """Return what `policy` does with `problem`, in simulation, as a plan: cores, threads, order, times, gap.

    "auto" takes the shortest of the plans of `AUTO`. `options` go to the policy that is named. NotFound for an
    unknown policy, InvalidInput for an unknown option.
    """
    if policy != "auto":
        return _planned(problem, _simulated(problem, policy, interference, options), interference)
    if options:
        raise InvalidInput(f"options {sorted(options)} need a named policy: those that auto tries have different ones")
    best = _simulated(problem, AUTO[0], interference, options)
    for name in AUTO[1:]:
        run = _simulated(problem, name, interference, options, give_up_s=best.now_s)
        best = run if run.done else best
    return _planned(problem, best, interference)


def plan_each(problem: Problem, policies: Sequence[str], *, interference: Interference | None = None) -> list[Plan]:
    """Return the plan of each of these policies, in their order."""
    return [plan(problem, policy=name, interference=interference) for name in policies]


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


def _planned(problem: Problem, run: Simulation, interference: Interference | None) -> Plan:
    ops = run.placements()
    bound_s = lower_bounds(problem).best_s
    if any(op.hardware_thread or op.threads > len(op.cores) for op in ops):
        bound_s /= (interference or CoreSharing(problem.machine)).core_throughput
    bound_s = min(bound_s, run.now_s)  # a sum in another order may be a rounding error larger
    return Plan(len(problem.machine), run.policy.name, ops, bound_s, curves_from=problem.curves.model)
