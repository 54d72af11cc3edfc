"""Replays a plan in Python threads: for machines without a compiler, and the measure of the native engine.

Each team runs its ops in order in one loop and meets another team only where `replay` says that it must. A waiting team
sleeps: to spin in Python would take the interpreter lock from those that work. Waking a sleeping team costs 35 us
on the 2-core virtual machine where this was written, and teams that run ops of a few microseconds wait for each
other's turn with the interpreter, so graphs of tiny ops are slower than in PyTorch's own loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from threadcast.collector.calls import Call
from threadcast.collector.capture import Captured
from threadcast.core import Machine, Plan, Trace
from threadcast.scheduler.runtime.engine import Engine
from threadcast.scheduler.runtime.executors import Executors
from threadcast.scheduler.runtime.lifetimes import Lifetimes, lifetimes
from threadcast.scheduler.runtime.op_times import OpTimes
from threadcast.scheduler.runtime.replay import Replay, arrange
from threadcast.scheduler.runtime.step import Step

Instruction = tuple[int, int, Call, tuple[int, ...], bool]
"""Op, the slot it fills, its call, the slots to empty after it, whether others must hear that it has finished."""


class PythonEngine(Engine):
    """Runs the steps of `captured` by `plan` on the cores of `machine`.

    Engines that are used in turn may share `executors`; without them the engine makes its own and closes them.
    PlanError where the plan is not one of this graph or needs cores that the machine lacks.
    """

    def __init__(self, captured: Captured, plan: Plan, machine: Machine, *, executors: Executors | None = None) -> None:
        self.plan = plan
        self._program, self._graph = captured.program, captured.graph
        self._replay = arrange(plan, captured.graph)
        self._lifetimes = lifetimes(captured.program, self._replay)
        self._calls = captured.program.calls
        self._instructions = self._instruct(self._calls)
        self._owned = executors is None
        self._executors = executors or Executors(machine)
        try:
            self._executors.make(self._replay.teams)
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[Any]) -> Any:
        return self._run(inputs, self._instructions)

    def run_traced(self, inputs: Sequence[Any]) -> tuple[Any, Trace]:
        times = OpTimes(self._graph)
        timed = self._instruct([times.timed(op, call) for op, call in enumerate(self._calls)])
        outputs = self._run(inputs, timed, note_start=times.begin)
        teams = [self._replay.teams[number] for number in self._replay.team_of]
        return outputs, times.trace(teams, cores=self.plan.cores, policy=self.plan.policy)

    def rest(self) -> None:
        self._executors.rest()

    def close(self) -> None:
        if self._owned:
            self._executors.close()

    def _run(
        self,
        inputs: Sequence[Any],
        instructions: Sequence[Sequence[Instruction]],
        note_start: Callable[[], None] | None = None,
    ) -> Any:
        slots = self._program.new_slots(inputs)
        self._executors.check()
        with self._executors.turn:
            self._executors.settle()
            step = _ReplayStep(slots, self._executors, self._replay, self._lifetimes)
            if note_start is not None:
                note_start()
            if instructions:
                step.complete(self._replay.teams[0], partial(step.begin, instructions))
        return self._program.collect(slots)

    def _instruct(self, calls: Sequence[Call]) -> list[list[Instruction]]:
        replay, lives, slot_of = self._replay, self._lifetimes, self._program.slot_of
        return [
            [(op, slot_of(op), calls[op], lives.last[op], bool(replay.tells[op] or lives.counted[op])) for op in ops]
            for ops in replay.sequences
        ]


class _ReplayStep(Step):
    def __init__(self, slots: list[Any], executors: Executors, replay: Replay, lives: Lifetimes) -> None:
        super().__init__(slots, executors)
        self._replay, self._lives = replay, lives
        self._awaited = [len(ops) for ops in replay.waits]
        self._users = dict(lives.users)
        self._parked: dict[int, threading.Lock] = {}  # op -> what its team sleeps on until the op may start

    def begin(self, instructions: Sequence[Sequence[Instruction]]) -> None:
        """Set the other teams to work, and do the first one's."""
        for team, theirs in zip(self._replay.teams[1:], instructions[1:], strict=True):
            self.launch(team, partial(self._play, theirs))
        self._play(instructions[0])

    def _play(self, instructions: Sequence[Instruction]) -> None:
        """Run a team's ops to the end, or until the step has failed."""
        slots, awaited = self.slots, self._awaited
        for op, slot, call, empties, reports in instructions:
            if awaited[op]:
                self._sleep_until_ready(op)
            if self.error is not None:
                return
            slots[slot] = call(slots)
            for empty in empties:
                slots[empty] = None
            if reports:
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
