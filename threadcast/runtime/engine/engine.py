"""Runs one captured step again and again by a plan: in C++, on pinned threads that replace OpenMP's pools."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from types import ModuleType, TracebackType
from typing import Any, Self, TypeVar

import torch
from torch.utils import _pytree as pytree

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core import Core, Machine, Placement, Plan, Trace
from threadcast.core.errors import EngineClosed, ExecutionError
from threadcast.runtime.engine.lifetimes import lifetimes
from threadcast.runtime.engine.native.library import has_engine, is_compiled, native_library
from threadcast.runtime.engine.native.lowering import Values, native_program, script_of
from threadcast.runtime.engine.replay import Seat, Team, arrange
from threadcast.threads.openmp import end_idle_workers

T = TypeVar("T")

Ran = tuple[float, float, int]
"""Start and finish of an op in seconds of the steady clock, and the number of its engine."""

_CLOSED = "the engine is closed; make a new one"
MAX_ENGINES = 64
"""Most native engines at a time; there is one for each pair of plan and cores, in case that pair comes again."""

SPIN_S = 3e-4
"""Seconds for which a waiting thread spins before it sleeps: several times the 35 to 50 us that waking a thread takes
on a virtual machine with 2 cores, and short enough that longer waits burn little CPU time."""


class Engine:
    """Runs the steps of `captured` by `plan` on the cores of `machine`; `with` closes it. Use it from any thread.

    - A run returns what `Captured.run` returns on the same inputs and random state.
    - All engines of a process share threads, so runs never overlap: one waits for the other. The calling thread takes
      part in the step, so Ctrl-C takes effect after it.
    - When an operator raises, no further op starts, running ops finish, all values of the step are freed, and the same
      exception is raised with its traceback. The next run works. What the step has written by then (parameters,
      running statistics) stays written.
    - Threads sleep between runs. They end when the last engine is closed or garbage-collected, and when the interpreter
      exits.
    - After `close`, and in a forked child, which has none of the threads, a run raises ExecutionError.

    ExecutionError where the native library cannot be had (`native_library` says why) or an operator cannot be called
    natively. PlanError where the plan is not for this graph or needs cores that the machine lacks.
    """

    def __init__(self, captured: Captured, plan: Plan, machine: Machine) -> None:
        self.plan, self.captured = plan, captured
        self._machine, self._policy = machine, plan.policy
        self._program, self._graph = captured.program, captured.graph
        self._native = native_library()
        self._values = Values.of(captured.program)
        self._native_program = native_program(self._native, captured, self._values)
        refs = set(find_refs(captured.program.outputs))
        outputs = ((ref.slot, self._values.of_ref(ref), ref.item) for ref in refs)
        self._outputs = sorted(outputs, key=lambda entry: entry[1])
        """(slot, number of the value, item) of each output."""
        places = {Ref(slot, item): i for i, (slot, _, item) in enumerate(self._outputs)}
        self._wanted = [value for _, value, _ in self._outputs]
        self._collected = [places[one] if isinstance(one, Ref) else None for one in captured.program.outputs]
        """The places of the program's results among the outputs; None for constants."""
        self._ops = len(captured.graph)
        self._changing = threading.Lock()
        self._translated: dict[int, _TranslatedPlan] = {}
        self._engines: dict[tuple[int, tuple[Seat, ...]], Any] = {}
        self._numbers = count()
        self._teams: dict[int, list[Team]] = {}
        self._steps = _NativeSteps(self._native, lambda lanes: self._engine(plan, machine, machine.cores, lanes))
        self._end = weakref.finalize(self, self._steps.end)

    def run(self, inputs: Sequence[Any]) -> Any:
        """Run one step on `inputs`, as `Captured.bind` returns them; return the result of the captured callable."""
        return self._run(inputs, None)

    def run_traced(self, inputs: Sequence[Any]) -> tuple[Any, Trace]:
        """Run one step; return its result and a trace of when each op ran, in seconds from the start of the step."""
        ran: list[Ran] = []
        outputs = self._run(inputs, ran)
        begin_s = min((start for start, *_ in ran), default=0.0)
        ops = []
        for op, (op_id, (start, finish, engine)) in enumerate(zip(self._graph.ids, ran, strict=True)):
            team = self._teams[engine][op]
            times = start - begin_s, finish - begin_s
            ops.append(Placement(op_id, team.cores, team.threads, *times, team.hardware_thread))
        return outputs, Trace(len(self._machine), self._policy, tuple(ops))

    @property
    def results(self) -> list[int | None] | None:
        """The numbers of the values that are the program's flat results; None for those that are None.

        None where a result is a constant that is no None.
        """
        outputs = self._program.outputs
        if any(one is not None and not isinstance(one, Ref) for one in outputs):
            return None
        return [None if one is None else self._values.of_ref(one) for one in outputs]

    def lend(self, use: Callable[[Any], T]) -> T:
        """Return `use(relay)`: the native object runs a step, which `run` does with a list of inputs."""
        return self._steps.lend(use)

    def _run(self, inputs: Sequence[Any], ran: list[Ran] | None) -> Any:
        program = self._program
        if not program.nodes or len(inputs) != len(program.inputs):
            return program.collect(program.new_slots(inputs))
        found = self._steps.run(inputs, self._wanted, self._ops, ran)
        pairs = zip(self._collected, program.outputs, strict=True)
        return pytree.tree_unflatten([one if i is None else found[i] for i, one in pairs], program.structure)

    def prepare(self, plan: Plan, machine: Machine) -> None:
        """Prepare a `change` to this plan, so that the change itself is quick. May be called from any thread."""
        with self._changing:
            self._translate(plan, machine)

    def change(self, plan: Plan, machine: Machine, cores: Sequence[Core]) -> None:
        """Continue with `plan`, which was made for `machine`; core i of that machine is replaced by `cores[i]`.

        May be called from any thread. A running step changes between two operators. Results are the same. Keep the plan
        alive as long as the engine, because the engine tells plans apart by identity.
        """
        with self._changing:
            self._steps.change(lambda lanes: self._engine(plan, machine, cores, lanes))
            self.plan = plan

    def close(self) -> None:
        """Wait until a current run ends, then let go of the threads; closing again does nothing."""
        self._end()
        with self._changing:
            self._engines.clear()  # they hold the threads
            self._translated.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _translate(self, plan: Plan, machine: Machine) -> _TranslatedPlan:
        if id(plan) not in self._translated:
            self._translated[id(plan)] = _TranslatedPlan(self._native, self.captured, plan, machine, self._values)
        return self._translated[id(plan)]

    def _engine(self, plan: Plan, machine: Machine, cores: Sequence[Core], lanes: Any) -> Any:
        """The native engine for `plan`, made for `machine`, with core i of that machine replaced by `cores[i]`."""
        translated = self._translate(plan, machine)
        seats = _seated(translated.seats, machine, cores)
        key = id(plan), tuple(seats)
        if key not in self._engines:
            if len(self._engines) >= MAX_ENGINES:
                self._engines.clear()
                self._translated = {id(plan): translated}
                self._teams = dict(list(self._teams.items())[-MAX_ENGINES:])
            try:
                cpus = [core.cpus for core in cores]
                engine = self._native.Engine(self._native_program, lanes, translated.script, seats, cpus, SPIN_S)
            except RuntimeError as error:
                raise ExecutionError(f"the cores of a plan cannot be used: {error}") from error
            engine.number = next(self._numbers)
            self._teams[engine.number] = translated.teams_on(machine, cores)
            self._engines[key] = engine
        return self._engines[key]


class _TranslatedPlan:
    """A plan translated for native engines; it can run on any cores."""

    def __init__(self, native: ModuleType, captured: Captured, plan: Plan, machine: Machine, values: Values) -> None:
        self.plan = plan  # must stay alive: engines know it by its id
        replay = arrange(plan, captured.graph)
        lives = lifetimes(values.touches(captured.program), values.returned(captured.program), replay)
        self.seats, members = script_of(replay, lives, values, machine)
        self._teams, self._team_of = replay.teams, replay.team_of
        self.script = native.Script(**members)

    def teams_on(self, machine: Machine, cores: Sequence[Core]) -> list[Team]:
        """The team of each op, with core i of `machine` replaced by `cores[i]`."""
        ids = {planned.id: core.id for planned, core in zip(machine.cores, cores, strict=True)}
        teams = [team._replace(cores=tuple(ids[core] for core in team.cores)) for team in self._teams]
        return [teams[number] for number in self._team_of]


def _seated(seats: Sequence[Seat], machine: Machine, cores: Sequence[Core]) -> list[Seat]:
    """The seats on `cores` that correspond to the `seats` on the cores of `machine`."""
    at = {cpu: (core, i) for core, planned in enumerate(machine.cores) for i, cpu in enumerate(planned.cpus)}
    found: list[Seat] = []
    for cpu, number in seats:
        core, i = at[cpu]
        cpus = cores[core].cpus
        seat = cpus[min(i, len(cpus) - 1)], number + max(0, i - len(cpus) + 1)
        while seat in found:
            seat = seat[0], seat[1] + 1
        found.append(seat)
    return found


class _NativeSteps:
    """The C++ engine and its threads, in an object of their own, so that a finalizer can end them."""

    def __init__(self, native: ModuleType, make: Callable[[Any], Any]) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._lanes = _shared_lanes(native)
        self._relay = native.Relay(make(self._lanes))

    def run(self, inputs: Sequence[Any], wanted: list[int], ops: int, ran: list[Ran] | None) -> list[Any]:
        timed, noted = (None, []) if ran is None else (ops, ran)
        found: list[Any] = self.lend(lambda relay: relay.run(list(inputs), wanted, timed, noted))
        return found

    def lend(self, use: Callable[[Any], T]) -> T:
        if os.getpid() != self._process:
            raise ExecutionError(
                f"the engine's threads stayed in process {self._process}, of which this one is a fork; "
                "make the engine, or what optimize or optimize_training returned, anew in this process"
            )
        with self._lock:
            if self._relay is None:
                raise EngineClosed(_CLOSED)
            end_idle_workers(stand_ins=False)  # the caller's own: they would spin on the engine's cores
            # In inference mode the calling thread's results would be of a kind that other threads must not write to.
            with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
                return use(self._relay)

    def change(self, make: Callable[[Any], Any]) -> None:
        """Continue with the native engine that `make(lanes)` returns; does not wait for a current run to end."""
        relay, lanes = self._relay, self._lanes
        if relay is None:
            raise EngineClosed(_CLOSED)
        relay.change(make(lanes))

    def end(self) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            self._relay = None
            self._lanes = None


class _LanesOf:
    """Holds the lanes (pinned threads) of one process for as long as some engine uses them."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.making = threading.Lock()
        self.lanes: weakref.ref[Any] | None = None


_current = _LanesOf(os.getpid())


def why_not(captured: Captured) -> str | None:
    """Return why no engine can run a graph; None where one can."""
    if not has_engine():
        return "no plans are made: the engine cannot be had on this machine (see the log, or `threadcast doctor`)"
    try:
        native_program(native_library(), captured, Values.of(captured.program))
    except ExecutionError as error:
        return f"no plans are made: {error}"
    return None


def lender(machine: Machine) -> Callable[[], None]:
    """Return what lends the threads of native engines to the calling thread, whose own operators run on them, too.

    They live as long as it does. It does nothing without the native library, and once the process's cores change,
    nor in a forked process.
    """
    try:
        native = native_library() if is_compiled() else None
    except ExecutionError:
        native = None
    if native is None:
        return lambda: None
    found: Callable[[], None] = _shared_lanes(native).lender([core.cpus for core in machine.cores])
    return found


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
