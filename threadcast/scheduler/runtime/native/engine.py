"""Runs steps in C++: pinned threads, dependency counters, and crews that serve OpenMP in place of its pools."""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from threadcast.collector.capture import Captured
from threadcast.collector.openmp import end_idle_workers
from threadcast.collector.values import find_refs
from threadcast.core import Machine, Placement, Plan, Trace
from threadcast.core.errors import ExecutionError
from threadcast.scheduler.runtime.engine import Engine
from threadcast.scheduler.runtime.lifetimes import lifetimes
from threadcast.scheduler.runtime.native.library import native_library
from threadcast.scheduler.runtime.native.lowering import Values, native_calls, script_of
from threadcast.scheduler.runtime.replay import Team, arrange

SPIN_S = 3e-4
"""Seconds for which a thread that waits spins before it sleeps: several times the 35 to 50 us that waking one takes
on the virtual machine where this was written, and short beside what a thread that waits longer would burn."""


class NativeStepper(Engine):
    """What native engines have in common: a program, and who runs it on the threads that all of a process share.

    The calling thread is one of those that run a step. Ctrl-C waits for the end of the step.
    """

    def __init__(
        self, captured: Captured, cores: int, policy: str, make: Callable[[ModuleType, Any, Any, Values], Any]
    ) -> None:
        native = native_library()
        self._program, self._graph, self._cores, self._policy = captured.program, captured.graph, cores, policy
        values = Values.of(captured.program)
        made = native.Program(native_calls(captured.program, values), values.first[-1])
        refs = set(find_refs(captured.program.outputs))
        self._wanted = sorted(((ref.slot, values.of_ref(ref), ref.item) for ref in refs), key=lambda entry: entry[1])
        self._held = _Held(native, lambda lanes: make(native, made, lanes, values))
        self._end = weakref.finalize(self, self._held.end)

    @abstractmethod
    def _team(self, op: int, lane: int) -> Team:
        """Who ran an op that this lane led."""

    def run(self, inputs: Sequence[Any]) -> Any:
        return self._run(inputs, None)

    def run_traced(self, inputs: Sequence[Any]) -> tuple[Any, Trace]:
        ran: list[tuple[float, float, int]] = []
        outputs = self._run(inputs, ran)
        begin_s = min((start for start, _, _ in ran), default=0.0)
        ops = []
        for op, (op_id, (start, finish, lane)) in enumerate(zip(self._graph.ids, ran, strict=True)):
            team = self._team(op, lane)
            times = start - begin_s, finish - begin_s
            ops.append(Placement(op_id, team.cores, team.threads, *times, team.hardware_thread))
        return outputs, Trace(self._cores, self._policy, tuple(ops))

    def rest(self) -> None:
        """Nothing to do: the threads sleep, and there are no idle OpenMP workers."""

    def close(self) -> None:
        self._end()

    def _run(self, inputs: Sequence[Any], ran: list[tuple[float, float, int]] | None) -> Any:
        slots = self._program.new_slots(inputs)
        if not self._program.nodes:
            return self._program.collect(slots)
        found = self._held.run(inputs, [value for _, value, _ in self._wanted], len(self._graph), ran)
        for (slot, _, item), value in zip(self._wanted, found, strict=True):
            slots[slot] = value if item is None else {**(slots[slot] or {}), item: value}
        return self._program.collect(slots)


class NativeEngine(NativeStepper):
    """Runs the steps of `captured` by `plan` on the cores of `machine`.

    ExecutionError where there is no native library (`native.library` says why) or an operator cannot be called
    natively; PlanError as the Python engine raises it.
    """

    def __init__(self, captured: Captured, plan: Plan, machine: Machine) -> None:
        self.plan = plan
        replay = arrange(plan, captured.graph)
        self._teams = [replay.teams[team] for team in replay.team_of]

        def make(native: ModuleType, program: Any, lanes: Any, values: Values) -> Any:
            lives = lifetimes(values.touches(captured.program), values.kept(captured.program), replay)
            return native.Engine(program, lanes, native.Script(**script_of(replay, lives, values, machine)), SPIN_S)

        super().__init__(captured, plan.cores, plan.policy, make)

    def _team(self, op: int, lane: int) -> Team:
        return self._teams[op]


class NativeLoop:
    """The calls of a program, one after the other, with nothing around them: what the engine is measured against."""

    def __init__(self, captured: Captured) -> None:
        values = Values.of(captured.program)
        self._program = native_library().Program(native_calls(captured.program, values), values.first[-1])

    def run(self, inputs: Sequence[Any]) -> None:
        """Call every operator once on the calling thread; the results are dropped at the end."""
        self._program.run(list(inputs))


class _Held:
    """A C++ engine and the threads, apart from the object whose end is theirs."""

    def __init__(self, native: ModuleType, make: Callable[[Any], Any]) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._lanes = _shared_lanes(native)
        self._engine = make(self._lanes)

    def run(
        self, inputs: Sequence[Any], wanted: list[int], ops: int, ran: list[tuple[float, float, int]] | None
    ) -> list[Any]:
        if os.getpid() != self._process:
            raise ExecutionError(
                f"the engine's threads stayed in process {self._process}, of which this one is a fork; "
                "make an engine after the fork"
            )
        with self._lock:
            if self._engine is None:
                raise ExecutionError("the engine is closed; make a new one")
            end_idle_workers()  # the caller's own: they would spin on the engine's cores
            found: list[Any] = self._engine.run(
                list(inputs), wanted, None if ran is None else ops, [] if ran is None else ran
            )
            return found

    def end(self) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            self._engine = None
            self._lanes = None


class _LanesOf:
    """The lanes of one process, as long as an engine holds them."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.making = threading.Lock()
        self.lanes: weakref.ref[Any] | None = None


_current = _LanesOf(os.getpid())


def _shared_lanes(native: ModuleType) -> Any:
    global _current
    if os.getpid() != _current.process:  # a fork: its parent's threads have not come along
        _current = _LanesOf(os.getpid())
    with _current.making:
        lanes = _current.lanes() if _current.lanes is not None else None
        if lanes is None:
            lanes = native.Lanes(SPIN_S)
            _current.lanes = weakref.ref(lanes)
        return lanes
