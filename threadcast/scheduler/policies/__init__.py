"""Scheduling policies, one file each: the state of a schedule goes in, launches come out.

Add your own with `register("mine", MyPolicy)`, as the built-in ones below are added.
"""

from threadcast.scheduler.policies.registry import (
    PLANNERS,
    create,
    names,
    options_of,
    plan_names,
    register,
    without_options,
)
from threadcast.scheduler.problem import Launch, Policy, Problem, Running, State

__all__ = [
    "PLANNERS",
    "Launch",
    "Policy",
    "Problem",
    "Running",
    "State",
    "create",
    "names",
    "options_of",
    "plan_names",
    "register",
    "without_options",
]

_HERE = "threadcast.scheduler.policies"
register("fifo", f"{_HERE}.fifo:Fifo")
register("uniform", f"{_HERE}.uniform:Uniform")
register("manual_grid", f"{_HERE}.manual_grid:ManualGrid")
register("strategies_1", f"{_HERE}.strategies:strategies_1")
register("strategies_1_3", f"{_HERE}.strategies:strategies_1_3")
register("strategies_1_2", f"{_HERE}.strategies:strategies_1_2")
register("strategies_1_2_3", f"{_HERE}.strategies:strategies_1_2_3")
register("strategies", f"{_HERE}.strategies:Strategies")
register("critical_path", f"{_HERE}.critical_path:CriticalPath")
register("sequential", f"{_HERE}.sequential:Sequential")
register("lp_rounding", f"{_HERE}.lp_rounding:LpRounding")
register("cpa", f"{_HERE}.cpa:Cpa")
register("mcpa", f"{_HERE}.cpa:Mcpa")
register("ios", f"{_HERE}.ios:Ios")
