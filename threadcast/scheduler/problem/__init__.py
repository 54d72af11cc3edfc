"""The scheduling problem (graph, times of its ops, machine), the state of a schedule, and the policy interface."""

from threadcast.scheduler.problem.policy import Policy
from threadcast.scheduler.problem.problem import Problem
from threadcast.scheduler.problem.state import Launch, Running, State

__all__ = ["Launch", "Policy", "Problem", "Running", "State"]
