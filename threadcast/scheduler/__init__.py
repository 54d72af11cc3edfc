"""Decides which cores every operation gets and when, and runs it so.

    problem = Problem(graph, curves_of(graph, machine), machine)
    planned = plan(problem)

Needs numpy alone; `predictor`, `remote` and `runtime` are imported by name.
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
