"""Decides which cores every operation of a graph gets, and when.

    problem = Problem(graph, curves_of(graph, machine), machine)
    planned = plan(problem)

Needs numpy alone; with numba (extra `plan`) it searches about 100 times as fast. Forecasts come from
`threadcast.prediction`; `threadcast.runtime` runs plans.
"""

from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Launch, Policy, Problem, State
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.simulation.checker import check_schedule

__all__ = ["Launch", "Policy", "Problem", "State", "check_schedule", "curves_of", "lower_bounds", "plan"]
