"""Decides which cores every operation gets and when, and runs it so.

    problem = Problem(graph, curves_of(graph, machine), machine)
    planned = plan(problem)

Needs numpy alone; `predictor`, `remote` and `runtime` are imported by name.
"""

from threadcast.scheduler.bounds import Bounds, lower_bounds
from threadcast.scheduler.checker import check_schedule
from threadcast.scheduler.curves import curves_of
from threadcast.scheduler.interference import CoreSharing, Interference
from threadcast.scheduler.planner import plan, plan_each
from threadcast.scheduler.policies import Launch, Policy, Problem, Running, State
from threadcast.scheduler.simulator import simulate

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
