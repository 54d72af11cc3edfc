"""What all that learns in a process shares: what it may cost, and, for graphs of `torch.compile`, the planner."""

from __future__ import annotations

from functools import lru_cache
from threading import RLock

from threadcast.core import Machine
from threadcast.runtime.fallback import Told
from threadcast.runtime.plans.step_forecasts import Answer, Question
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.plan_maker import Asked, Planner


@lru_cache(maxsize=8)
def budget(share: float) -> Budget:
    """What all that learns with this share may spend together; each program and each kind of calls has a part of it."""
    return Budget(share)


@lru_cache(maxsize=8)
def planner_for(machine: Machine) -> Planner:
    """The planner for all graphs on these cores; the same one each time."""
    return _ThreadSafePlanner(machine)


@lru_cache(maxsize=1)
def told() -> Told:
    """What warns of graphs that run as PyTorch does: once for each reason in a process."""
    return Told()


class _ThreadSafePlanner(Planner):
    """A `Planner` for graphs that are called from several threads."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._lock = RLock()

    @property
    def free(self) -> bool:
        with self._lock:
            return super().free

    def begin(self, user: object) -> None:
        with self._lock:
            super().begin(user)

    def ask(self, question: Question) -> Asked:
        with self._lock:
            return super().ask(question)

    def answer(self, asked: Asked) -> Answer | None:
        with self._lock:
            return super().answer(asked)

    def give_up(self, asked: Asked) -> None:
        with self._lock:
            super().give_up(asked)

    def done(self, user: object) -> None:
        with self._lock:
            super().done(user)

    def close(self) -> None:
        with self._lock:
            super().close()
