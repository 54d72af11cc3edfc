"""Replays a plan in Python threads: for machines without a compiler, and to compare the native engine with.

Each team runs its ops in order in one loop, and waits for another team only where `replay` says so. A waiting team
sleeps, because spinning in Python would take the interpreter lock from teams that work. Waking a sleeping team costs
35 us on a virtual machine with 2 cores. Teams that run ops of a few microseconds also wait for each other's interpreter
lock, so graphs of tiny ops are slower than in PyTorch's own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Call
from threadcast.capture.graph.values import find_refs
from threadcast.core import Core, Machine, Plan, Trace
from threadcast.core.errors import PlanError
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.executors import Executors
from threadcast.runtime.engine.lifetimes import lifetimes
from threadcast.runtime.engine.op_times import OpTimes
from threadcast.runtime.engine.replay import Replay, arrange
from threadcast.runtime.engine.step import ReplayedOp, Step


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
            step = Step(slots, self._executors, calls, replay, self._lifetimes, self._sequences)
            if note_start is not None:
                note_start()
            if calls:
                step.complete()
        return self.captured.program.collect(slots), replay

    def _follow_change(self) -> None:
        if (plan := self._next) is not self._arranged:  # another may come at any moment: that is the next step's
            self._arranged = plan
            self._arrange(plan)
            self._executors.change(self._replay.teams)
