"""The interface of a scheduling policy: ready ops and idle cores go in, launches come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from threadcast.scheduler.problem.problem import Problem
from threadcast.scheduler.problem.state import Launch, State


class Policy(ABC):
    """Decides which ops to launch. It is created once for a problem, and asked at every event.

    A subclass sets `name`, prepares what it can in `__init__`, and implements `decide`. That must be a pure function of
    problem and state: no clock, no randomness, no memory of earlier calls (results may be cached). The simulator and
    the service call the same object. Register a policy with `threadcast.scheduler.policies.register`.
    """

    name: str
    rank: Sequence[int] | None = None
    """One different number for each op: `State.ready` lists ops in ascending order of it. None: in the order in which
    the ops became ready."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def decide(self, state: State) -> Sequence[Launch]:
        """Return the launches to make now, in order. Empty: wait for the next event, only allowed while an op runs."""
