"""Replays a plan in C++: pinned threads, dependency counters, and crews that serve OpenMP in place of its pools."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
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
from threadcast.scheduler.runtime.replay import arrange

SPIN_S = 3e-4
"""Seconds for which a thread that waits spins before it sleeps: several times the 35 to 50 us that waking one takes
on the virtual machine where this was written, and short beside what a thread that waits longer would burn."""


class NativeEngine(Engine):
    """Runs the steps of `captured` by `plan` on the cores of `machine`; the calling thread is one of those that do.

    All native engines of a process share the threads of its cores, which end with the last engine. Ctrl-C waits for the
    end of the step. ExecutionError where there is no native library (`native.library` says why) or an operator cannot
    be called natively; PlanError as the Python engine raises it.
    """

    def __init__(self, captured: Captured, plan: Plan, machine: Machine) -> None:
        self.plan = plan
        native = native_library()
        program, replay = captured.program, arrange(plan, captured.graph)
        values = Values.of(program)
        script = native.Script(**script_of(replay, lifetimes(program, replay), values, machine))
        made = native.Program(native_calls(program, values), values.first[-1])
        self._program, self._graph, self._teams = program, captured.graph, [replay.teams[t] for t in replay.team_of]
        self._wanted = sorted({(ref.slot, values.of_ref(ref), ref.item) for ref in find_refs(program.outputs)}, key=str)
        self._held = _Held(native, made, script)
        self._end = weakref.finalize(self, self._held.end)

    def run(self, inputs: Sequence[Any]) -> Any:
        return self._run(inputs, None)

    def run_traced(self, inputs: Sequence[Any]) -> tuple[Any, Trace]:
        times: list[tuple[float, float]] = []
        outputs = self._run(inputs, times)
        begin_s = min((start for start, _ in times), default=0.0)
        ops = tuple(
            Placement(op_id, team.cores, team.threads, start - begin_s, finish - begin_s, team.hardware_thread)
            for op_id, team, (start, finish) in zip(self._graph.ids, self._teams, times, strict=True)
        )
        return outputs, Trace(self.plan.cores, self.plan.policy, ops)

    def rest(self) -> None:
        """Nothing to do: the threads sleep, and there are no idle OpenMP workers."""

    def close(self) -> None:
        self._end()

    def _run(self, inputs: Sequence[Any], times: list[tuple[float, float]] | None) -> Any:
        slots = self._program.new_slots(inputs)
        if not self._program.nodes:
            return self._program.collect(slots)
        found = self._held.run(inputs, [value for _, value, _ in self._wanted], len(self._graph), times)
        for (slot, _, item), value in zip(self._wanted, found, strict=True):
            if item is None:
                slots[slot] = value
            else:
                slots[slot] = {**(slots[slot] or {}), item: value}
        return self._program.collect(slots)


class NativeLoop:
    """The calls of a program, one after the other, with nothing around them: what the engine is measured against."""

    def __init__(self, captured: Captured) -> None:
        values = Values.of(captured.program)
        self._program = native_library().Program(native_calls(captured.program, values), values.first[-1])

    def run(self, inputs: Sequence[Any]) -> None:
        """Call every operator once on the calling thread; the results are dropped at the end."""
        self._program.run(list(inputs))


class _Held:
    """The C++ engine and its threads, apart from the object whose end is theirs."""

    def __init__(self, native: ModuleType, program: Any, script: Any) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._lanes = _shared_lanes(native)
        self._engine = native.Engine(program, self._lanes, script, SPIN_S)

    def run(
        self, inputs: Sequence[Any], wanted: list[int], ops: int, times: list[tuple[float, float]] | None
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
                list(inputs), wanted, None if times is None else ops, [] if times is None else times
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

    def __init__(self) -> None:
        self.process = 0
        self.making = threading.Lock()
        self.lanes: weakref.ref[Any] | None = None


_CURRENT = _LanesOf()


def _shared_lanes(native: ModuleType) -> Any:
    if os.getpid() != _CURRENT.process:  # also a fork's: its parent's threads have not come along
        _CURRENT.__init__()  # type: ignore[misc]
        _CURRENT.process = os.getpid()
    with _CURRENT.making:
        lanes = _CURRENT.lanes() if _CURRENT.lanes is not None else None
        if lanes is None:
            lanes = native.Lanes(SPIN_S)
            _CURRENT.lanes = weakref.ref(lanes)
        return lanes
