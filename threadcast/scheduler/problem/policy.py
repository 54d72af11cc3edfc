"""The interface of a scheduling policy: ready ops and idle cores go in, launches come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from threadcast.scheduler.problem.problem import Problem
from threadcast.scheduler.problem.state import Launch, State


class Policy(ABC):
    """Decides what to launch; created once for a problem, then asked at every event.

    A subclass sets `name`, computes in `__init__` what it can beforehand, and implements `decide`, a pure function of
    the problem and the state: no clock, no randomness, no memory of earlier calls (pure results may be cached). The
    simulator, the Python engine and the service all call the same object. Register a policy with
    `threadcast.scheduler.policies.register`.
    """

    name: str
    rank: Sequence[int] | None = None
    """The priority of each op, the lowest number first, all different: `State.ready` is in this order. None: in the
    order in which the ops became ready."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def decide(self, state: State) -> Sequence[Launch]:
        """Return the launches to make now, in order; an empty sequence to wait, never with nothing running."""
