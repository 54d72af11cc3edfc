"""The contract of a policy: what is ready and idle goes in, what to launch comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from threadcast.scheduler.problem.problem import Problem
from threadcast.scheduler.problem.state import Launch, State


class Policy(ABC):
    """Decides what to launch; made once for a problem, then asked at every event.

    Set `name`; compute what can be computed beforehand in `__init__`; write `decide`. `decide` is a pure function of
    the problem and the state: no clock, no randomness, no memory of earlier calls (pure results may be cached). It
    returns the launches to make now, in order, an empty sequence to wait; with nothing running and something ready
    it must launch. The simulator, the Python engine and the service all drive the same object. Register it with
    `threadcast.scheduler.policies.register`.
    """

    name: str
    rank: Sequence[int] | None = None
    """One different number an op: drivers hand over `ready` in this order, ascending (`simulation.ready_set`)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def decide(self, state: State) -> Sequence[Launch]:
        """Return what to launch now."""
