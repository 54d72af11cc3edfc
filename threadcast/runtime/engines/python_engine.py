"""Replays a plan in Python threads: for machines without a compiler, and to compare the native engine with.

Each team runs its ops in order in one loop, and waits for another team only where `replay` says so. A waiting team
sleeps, because spinning in Python would take the interpreter lock from teams that work. Waking a sleeping team costs
35 us on a virtual machine with 2 cores. Teams that run ops of a few microseconds also wait for each other's interpreter
lock, so graphs of tiny ops are slower than in PyTorch's own loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from threadcast.capture.calls import Call
from threadcast.capture.capture import Captured
from threadcast.capture.values import find_refs
from threadcast.core import Core, Machine, Plan, Trace
from threadcast.core.errors import PlanError
from threadcast.runtime.engines.engine import Engine
from threadcast.runtime.engines.executors import Executors
from threadcast.runtime.engines.lifetimes import Lifetimes, lifetimes
from threadcast.runtime.engines.op_times import OpTimes
from threadcast.runtime.engines.replay import Replay, arrange
from threadcast.runtime.engines.step import Step

ReplayedOp = tuple[int, int, tuple[int, ...], bool]
"""Number of the op, the slot that it fills, slots to empty after it, whether its finish must be reported to others."""


class PythonEngine(Engine):
    """Runs the steps of `captured` by `plan` on the cores of `machine`, in Python threads.

    Engines that are used in turns may share `executors`; with None the engine makes its own and closes them. PlanError
    where the plan is not for this graph or needs cores that the machine lacks.
    """

    def __init__(self, captured: Captured, plan: Plan, machine: Machine, *, executors: Executors | None = None) -> None:
        self.plan, self.captured = plan, captured
        self._machine = machine
        self._cores, self._policy = plan.cores, plan.policy
        self._arrange(plan)
        self._next = self._arranged = plan
        self._owned = executors is None
        self._executors = executors or Executors(machine)
        try:
            self._executors.make(self._replay.teams)
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[Any]) -> Any:
        return self._run(inputs, self.captured.program.calls)[0]

    def run_traced(self, inputs: Sequence[Any]) -> tuple[Any, Trace]:
        times = OpTimes(self.captured.graph)
        calls = [times.timed(op, call) for op, call in enumerate(self.captured.program.calls)]
        outputs, replay = self._run(inputs, calls, times.begin)
        teams = [replay.teams[number] for number in replay.team_of]
        return outputs, times.trace(teams, cores=self._cores, policy=self._policy)

    def rest(self) -> None:
        self._executors.rest()

    def close(self) -> None:
        if self._owned:
            self._executors.close()

    def prepare(self, plan: Plan, machine: Machine) -> None:
        """Do nothing: this engine changes plans between two steps, where the change need not be quick."""

    def change(self, plan: Plan, machine: Machine, cores: Sequence[Core]) -> None:
        unknown = {core.id for core in cores} - {core.id for core in self._machine.cores}
        if unknown:
            raise PlanError(f"cores {sorted(unknown)} are not among those that this engine was made for")
        self.plan = plan
        self._next = plan.on({planned.id: core.id for planned, core in zip(machine.cores, cores, strict=True)})

    def _arrange(self, plan: Plan) -> None:
        program, replay = self.captured.program, arrange(plan, self.captured.graph)
        computed = [[slot for slot in slots if slot >= len(program.inputs)] for slots in program.touches]
        returned = {ref.slot for ref in find_refs(program.outputs)}
        self._replay, self._lifetimes = replay, lifetimes(computed, returned, replay)
        last, counted = self._lifetimes.last, self._lifetimes.counted
        self._sequences: list[list[ReplayedOp]] = [
            [(op, program.slot_of(op), last[op], bool(replay.tells[op] or counted[op])) for op in ops]
            for ops in replay.sequences
        ]

    def _run(
        self, inputs: Sequence[Any], calls: Sequence[Call], note_start: Callable[[], None] | None = None
    ) -> tuple[Any, Replay]:
        slots = self.captured.program.new_slots(inputs)
        self._executors.check()
        with self._executors.turn:
            self._executors.settle()
            self._follow_change()
            replay = self._replay
            step = _ReplayStep(slots, self._executors, calls, replay, self._lifetimes, self._sequences)
            if note_start is not None:
                note_start()
            if calls:
                step.complete(replay.teams[0])
        return self.captured.program.collect(slots), replay

    def _follow_change(self) -> None:
        if (plan := self._next) is not self._arranged:  # another may come at any moment: that is the next step's
            self._arranged = plan
            self._arrange(plan)
            self._executors.change(self._replay.teams)


class _ReplayStep(Step):
    def __init__(
        self,
        slots: list[Any],
        executors: Executors,
        calls: Sequence[Call],
        replay: Replay,
        lives: Lifetimes,
        sequences: Sequence[Sequence[ReplayedOp]],
    ) -> None:
        super().__init__(slots, executors)
        self._calls, self._replay, self._lives, self._sequences = calls, replay, lives, sequences
        self._awaited = [len(ops) for ops in replay.waits]
        self._users = dict(lives.users)
        self._parked: dict[int, threading.Lock] = {}  # op -> what its team sleeps on until the op may start

    def begin(self) -> None:
        """Start the other teams, then run the first team's ops."""
        for team, theirs in zip(self._replay.teams[1:], self._sequences[1:], strict=True):
            self.launch(team, partial(self._play, theirs))
        self._play(self._sequences[0])

    def _play(self, sequence: Sequence[ReplayedOp]) -> None:
        """Run a team's ops to the end, or until the step has failed."""
        slots, calls, awaited = self.slots, self._calls, self._awaited
        for op, slot, empties, awaited_by_others in sequence:
            if awaited[op]:
                self._sleep_until_ready(op)
            if self.error is not None:
                return
            slots[slot] = calls[op](slots)
            for empty in empties:
                slots[empty] = None
            if awaited_by_others:
                self._report(op)

    def wake_all(self) -> None:
        for gate in self._parked.values():
            gate.release()
        self._parked.clear()

    def _sleep_until_ready(self, op: int) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self.lock:
            if not self._awaited[op] or self.error is not None:
                return
            self._parked[op] = gate
        gate.acquire()

    def _report(self, op: int) -> None:
        with self.lock:
            for other in self._replay.tells[op]:
                self._awaited[other] -= 1
                if not self._awaited[other] and (gate := self._parked.pop(other, None)) is not None:
                    gate.release()
            for slot in self._lives.counted[op]:
                self._users[slot] -= 1
                if not self._users[slot]:
                    self.slots[slot] = None
