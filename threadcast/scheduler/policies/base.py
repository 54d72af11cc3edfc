"""The contract of a policy: what is ready and idle goes in, what to launch comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from threadcast.core import CurveTable, Machine, OpGraph
from threadcast.core.errors import PlanError


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph, the predicted curve of each of its ops (row i for op i) and the machine to run it on."""

    graph: OpGraph
    curves: CurveTable
    machine: Machine

    def __post_init__(self) -> None:
        if len(self.curves) != len(self.graph):
            raise PlanError(f"{len(self.curves)} curves for {len(self.graph)} ops: there must be one an op")


@dataclass(frozen=True, slots=True)
class Running:
    """An op that runs now: its position in the graph, core ids, and when it is predicted to finish."""

    op: int
    cores: tuple[int, ...]
    finish_s: float
    hardware_thread: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """All that a decision may depend on. `ready` is in the order in which the ops became ready."""

    now_s: float
    ready: tuple[int, ...]
    idle: tuple[int, ...]
    """Core ids on which no op runs, ascending."""
    running: tuple[Running, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Start op `op` now with `threads` threads on `cores`; `hardware_thread` 1 puts it beside a running op."""

    op: int
    cores: tuple[int, ...]
    threads: int
    hardware_thread: int = 0


class Policy(ABC):
    """Decides what to launch; made once for a problem, then asked at every event.

    Set `name`; compute what can be computed beforehand in `__init__`; write `decide`. `decide` is a pure function of
    the problem and the state: no clock, no randomness, no memory of earlier calls. It returns the
    launches to make now, in order, an empty sequence to wait; with nothing running and something ready it must
    launch. The simulator, the Python engine and the service all drive the same object.
    """

    name: ClassVar[str]

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def decide(self, state: State) -> Sequence[Launch]:
        """Return what to launch now."""
