"""What is scheduled: a graph with the times of its ops and a machine; the state of a schedule; the policy interface."""

from threadcast.scheduler.problem.policy import Policy
from threadcast.scheduler.problem.problem import Problem
from threadcast.scheduler.problem.state import Launch, Running, State

__all__ = ["Launch", "Policy", "Problem", "Running", "State"]
