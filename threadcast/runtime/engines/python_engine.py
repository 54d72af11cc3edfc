"""Replays a plan in Python threads: for machines without a compiler, and to compare the native engine with.

Each team runs its ops in order in one loop, and waits for another team only where `replay` says so. A waiting team
sleeps, because spinning in Python would take the interpreter lock from teams that work. Waking a sleeping team costs
35 us on a virtual machine with 2 cores. Teams that run ops of a few microseconds also wait for each other's interpreter
lock, so graphs of tiny ops are slower than in PyTorch's own loop.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from threadcast.capture.calls import Call
from threadcast.capture.capture import Captured
from threadcast.capture.values import find_refs
from threadcast.core import Core, Machine, Plan
from threadcast.core.errors import PlanError
from threadcast.runtime.engines.engine import PlanEngine
from threadcast.runtime.engines.executor_engine import ExecutorEngine
from threadcast.runtime.engines.executors import Executors
from threadcast.runtime.engines.lifetimes import Lifetimes, lifetimes
from threadcast.runtime.engines.replay import Replay, Team, arrange
from threadcast.runtime.engines.step import Step

Instruction = tuple[int, int, tuple[int, ...], bool]
"""Number of the op, the slot that it fills, slots to empty after it, whether its finish must be reported to others."""


class PythonEngine(ExecutorEngine, PlanEngine):
    """Runs the steps of `captured` by `plan` on the cores of `machine`, in Python threads.

    Engines that are used in turns may share `executors`; with None the engine makes its own and closes them. PlanError
    where the plan is not for this graph or needs cores that the machine lacks.
    """

    def __init__(self, captured: Captured, plan: Plan, machine: Machine, *, executors: Executors | None = None) -> None:
        self.plan, self.captured = plan, captured
        self._machine = machine
        self._arrange(plan)
        self._next = self._arranged = plan
        super().__init__(
            captured, machine, teams=self._replay.teams, executors=executors, cores=plan.cores, policy=plan.policy
        )

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
        made = [[slot for slot in slots if slot >= len(program.inputs)] for slots in program.touches]
        kept = {ref.slot for ref in find_refs(program.outputs)}
        self._replay, self._lifetimes = replay, lifetimes(made, kept, replay)
        last, counted = self._lifetimes.last, self._lifetimes.counted
        self._instructions: list[list[Instruction]] = [
            [(op, program.slot_of(op), last[op], bool(replay.tells[op] or counted[op])) for op in ops]
            for ops in replay.sequences
        ]

    def _new_step(self, slots: list[Any], calls: Sequence[Call]) -> Step:
        if (plan := self._next) is not self._arranged:  # another may come at any moment: that is the next step's
            self._arranged = plan
            self._arrange(plan)
            self._teams = self._replay.teams
            self._executors.change(self._teams)
        return _ReplayStep(slots, self._executors, calls, self._replay, self._lifetimes, self._instructions)


class _ReplayStep(Step):
    def __init__(
        self,
        slots: list[Any],
        executors: Executors,
        calls: Sequence[Call],
        replay: Replay,
        lives: Lifetimes,
        instructions: Sequence[Sequence[Instruction]],
    ) -> None:
        super().__init__(slots, executors)
        self._calls, self._replay, self._lives, self._instructions = calls, replay, lives, instructions
        self._awaited = [len(ops) for ops in replay.waits]
        self._users = dict(lives.users)
        self._parked: dict[int, threading.Lock] = {}  # op -> what its team sleeps on until the op may start

    @property
    def teams(self) -> Sequence[Team]:
        return [self._replay.teams[number] for number in self._replay.team_of]

    def begin(self) -> None:
        """Start the other teams, then run the first team's ops."""
        for team, theirs in zip(self._replay.teams[1:], self._instructions[1:], strict=True):
            self.launch(team, partial(self._play, theirs))
        self._play(self._instructions[0])

    def _play(self, instructions: Sequence[Instruction]) -> None:
        """Run a team's ops to the end, or until the step has failed."""
        slots, calls, awaited = self.slots, self._calls, self._awaited
        for op, slot, empties, reports in instructions:
            if awaited[op]:
                self._sleep_until_ready(op)
            if self.error is not None:
                return
            slots[slot] = calls[op](slots)
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
