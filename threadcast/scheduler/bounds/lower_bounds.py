"""Lower bounds on the makespan, which no schedule can beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threadcast.scheduler.bounds.allotment_lp import relax
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.levels import levels


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds on the makespan of any schedule of a problem, in seconds.

    `critical_path_s`: the longest path with every op in its fastest case. `area_s`: the core-seconds of all ops in
    their most frugal cases, over the number of cores. `allotment_lp_s`: a bound that balances both
    (`allotment_lp.relax`), None where it was not computed. They hold for one op at a time on a core. Where ops share
    cores, divide them by the throughput that sharing gains (`Interference.core_throughput`).
    """

    critical_path_s: float
    area_s: float
    allotment_lp_s: float | None = None

    @property
    def best_s(self) -> float:
        """The highest of the bounds, which is the best one."""
        return max(self.critical_path_s, self.area_s, self.allotment_lp_s or 0.0)


def lower_bounds(problem: Problem, *, lp: bool = True) -> Bounds:
    """Return the bounds of `problem` over the cases that fit its machine.

    Without `lp` this takes milliseconds; with it, up to 0.8 s of one core for graphs of up to 16,000 ops.
    """
    times = problem.times
    fastest_s = times.seconds.min(axis=1)
    frugal_core_s = (times.seconds * np.asarray(times.counts)).min(axis=1)
    path_s = float(levels(problem.graph, fastest_s).max())
    area_s = float(frugal_core_s.sum()) / len(problem.machine)
    return Bounds(path_s, area_s, relax(problem).bound_s if lp else None)
