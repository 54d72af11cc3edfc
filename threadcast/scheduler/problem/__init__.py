"""What is scheduled and who decides: the problem, the state of a schedule, launches, the contract of a policy."""

from threadcast.scheduler.problem.policy import Policy
from threadcast.scheduler.problem.problem import Problem
from threadcast.scheduler.problem.state import Launch, Running, State

__all__ = ["Launch", "Policy", "Problem", "Running", "State"]
