"""Finds the best of several settings of a policy by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from threadcast.core.errors import PlanError
from threadcast.scheduler.interference.core_sharing import CoreSharing, Interference
from threadcast.scheduler.problem import Policy, Problem
from threadcast.scheduler.problem.levels import levels
from threadcast.scheduler.problem.uniform_width import team_times
from threadcast.scheduler.simulation.simulator import makespan_s

P = TypeVar("P", bound=Policy)

ROUNDING = 1e-9
"""Relative difference of makespans that counts as none: sums of the same times in another order differ by less."""


def fastest_setting(
    problem: Problem,
    settings: Sequence[tuple[int, int]],
    make: Callable[[tuple[int, int]], P],
    *,
    interference: Interference | None = None,
    by_bounds: bool = True,
) -> P:
    """Return the policy `make(setting)` with the shortest simulated makespan; among equals the first tried.

    A setting is (number of teams, threads of a team). Settings are tried in order of a lower bound on their makespan:
    the largest of the critical path, the sum of all ops over the teams, and their core-seconds over the cores, all at
    the team's width (at most the machine's cores), divided by the most that hyper-threads gain. Settings that cannot
    beat the best so far are left out, which changes the result only within rounding; without `by_bounds` all are tried,
    for a policy that runs ops elsewhere than on these teams. PlanError where no setting can run every op.
    """
    bounds = _bounds(problem, settings, (interference or CoreSharing(problem.machine)).core_throughput)
    best: P | None = None
    best_s = float("inf")
    for bound_s, setting in sorted(bounds, key=lambda pair: pair[0]):
        if by_bounds and bound_s >= best_s * (1 - ROUNDING):
            break
        policy = make(setting)
        found_s = makespan_s(policy, interference=interference, give_up_s=best_s)
        if best is None or found_s < best_s:
            best, best_s = policy, found_s
    if best is None:
        raise PlanError(f"none of the settings {list(settings)} can run every op: their teams are too narrow")
    return best


def _bounds(
    problem: Problem, settings: Sequence[tuple[int, int]], throughput: float
) -> list[tuple[float, tuple[int, int]]]:
    cores = len(problem.machine)
    seconds, area_s = {}, {}
    for width in {min(threads, cores) for _, threads in settings}:
        try:
            positions, seconds[width] = team_times(problem, width)
            area_s[width] = float(seconds[width] @ np.asarray(problem.times.counts)[positions]) / cores
        except PlanError:  # too narrow for some op: the setting drops out
            continue
    if not seconds:
        return []
    path_s = dict(zip(seconds, levels(problem.graph, np.stack(list(seconds.values()), axis=1)).max(axis=0)))
    work_s = {width: float(s.sum()) for width, s in seconds.items()}
    return [
        (max(float(path_s[width]), work_s[width] / count, area_s[width]) / throughput, (count, threads))
        for count, threads in settings
        if (width := min(threads, cores)) in seconds
    ]
