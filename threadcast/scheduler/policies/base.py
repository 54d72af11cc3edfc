"""The contract of a policy: what is ready and idle goes in, what to launch comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from threadcast.core import CurveTable, Machine, OpGraph
from threadcast.core.errors import PlanError
from threadcast.scheduler.times import Times


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A graph, the predicted curve of each of its ops (row i for op i) and the machine to run it on.

    `times` answers how long an op takes on given cores. PlanError for an empty graph and where an op offers no case
    that fits.
    """

    graph: OpGraph
    curves: CurveTable
    machine: Machine
    times: Times = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.graph):
            raise PlanError("the graph has no ops: there is nothing to plan")
        if len(self.curves) != len(self.graph):
            raise PlanError(f"{len(self.curves)} curves for {len(self.graph)} ops: there must be one an op")
        object.__setattr__(self, "times", Times(self.curves, self.machine, ids=self.graph.ids))


@dataclass(frozen=True, slots=True)
class Running:
    """An op that runs now: its position in the graph, core ids, thread count, start and predicted finish.

    With more threads than cores it fills that many hardware threads of each core, from `hardware_thread` on.
    """

    op: int
    cores: tuple[int, ...]
    threads: int
    start_s: float
    finish_s: float
    """Start plus predicted lone seconds; in the past when the op takes longer than predicted."""
    hardware_thread: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that a decision may depend on; a view that is valid during the call only.

    `ready` is in ascending order of the policy's `rank`, or in the order in which the ops became ready where it
    sets none; `op in ready` takes constant time in the simulator and the engine.
    """

    now_s: float
    ready: Sequence[int]
    idle: tuple[int, ...]
    """Core ids on which no op runs, in the machine's order."""
    running: tuple[Running, ...]
    finished: Sequence[int] | None = None
    """One entry an op, not 0 where it has finished. None where the driver does not keep it (it follows from
    `ready` and `running`: whatever is neither of them nor behind one of them)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start op `op` now with `threads` threads on `cores`.

    `hardware_thread` 1 puts it beside a running op. `threads` above the number of cores takes further hardware
    threads of each core, and beyond those that the machine has, time slices.
    """

    op: int
    cores: tuple[int, ...]
    threads: int
    hardware_thread: int = 0


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
    """One different number an op: drivers hand over `ready` in this order, ascending (`scheduler.ready`)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def decide(self, state: State) -> Sequence[Launch]:
        """Return what to launch now."""
