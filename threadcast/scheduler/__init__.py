"""Decides which cores every operation of a graph gets, and when.

    problem = Problem(graph, curves_of(graph, machine), machine)
    planned = plan(problem)

Needs numpy alone; with numba (extra `plan`) it searches about 100 times as fast. Forecasts come from
`threadcast.prediction`; `threadcast.runtime` runs plans.
"""

from threadcast.scheduler.bounds.lower_bounds import Bounds, lower_bounds
from threadcast.scheduler.interference.core_sharing import CoreSharing, Interference
from threadcast.scheduler.planner import plan, plan_each
from threadcast.scheduler.policies import Launch, Policy, Problem, Running, State
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.scheduler.simulation.simulator import simulate

__all__ = [
    "Bounds",
    "CoreSharing",
    "Interference",
    "Launch",
    "Policy",
    "Problem",
    "Running",
    "State",
    "check_schedule",
    "curves_of",
    "lower_bounds",
    "plan",
    "plan_each",
    "simulate",
]
