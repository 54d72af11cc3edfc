"""Lower bounds on the makespan, which no schedule can beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threadcast.scheduler.bounds.allotment_lp import relax
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import levels


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds in seconds on the makespan: no schedule of the problem can be shorter.

    `critical_path_s`: the time of the longest chain of ops that depend on each other, each at its fastest thread count.
    `area_s`: the least core-seconds (cores x seconds) that all ops need, divided by the number of cores.
    `allotment_lp_s`: a linear program's bound that is at least as high as both (`allotment_lp.relax`); None where it
    was not computed. The bounds hold for schedules with one op at a time on a core. For schedules in which ops share a
    core, divide them by `Interference.core_throughput`.
    """

    critical_path_s: float
    area_s: float
    allotment_lp_s: float | None = None

    @property
    def best_s(self) -> float:
        """The highest of the bounds, which is the best one."""
        return max(self.critical_path_s, self.area_s, self.allotment_lp_s or 0.0)


def lower_bounds(problem: Problem, *, lp: bool = True) -> Bounds:
    """Return the lower bounds of `problem`, over the cases that fit its machine.

    `lp=False` leaves `allotment_lp_s` out: milliseconds in place of up to 0.8 s for graphs of up to 16,000 ops.
    """
    times = problem.times
    fastest_s = times.seconds.min(axis=1)
    frugal_core_s = (times.seconds * np.asarray(times.counts)).min(axis=1)
    path_s = float(levels(problem.graph, fastest_s).max())
    area_s = float(frugal_core_s.sum()) / len(problem.machine)
    return Bounds(path_s, area_s, relax(problem).bound_s if lp else None)
