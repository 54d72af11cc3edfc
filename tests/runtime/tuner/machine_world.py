"""A tuning machine whose steps take given times, for tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from threadcast.core import Case
from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner.contender_id import DEFAULT, ContenderId, backend, plan_of
from threadcast.runtime.tuner.instructions import (
    Capture,
    ContenderStep,
    Instruction,
    Instructions,
    LeaveOut,
    MakePlan,
    Open,
    SearchStep,
    UsePlan,
)  # fmt: skip
from threadcast.runtime.tuner.machine import TuningMachine
from threadcast.runtime.tuner.plan_search import Look, Meanwhile
from threadcast.runtime.tuner.states import LEGAL_MOVES, IllegalMove, SearchStage, State

LOOKS = LookSchedule((Case(2), Case(1)), 2, 5)
AS_GIVEN, CHANNELS_LAST = Variant(MemoryFormat.AS_GIVEN), Variant(MemoryFormat.CHANNELS_LAST)
FUSED = Variant(MemoryFormat.AS_GIVEN, fused=True)


def check_invariants(machine: TuningMachine) -> None:
    """What holds after every event."""
    history = machine.moves.history
    assert all(move.target in LEGAL_MOVES[move.source] for move in history)
    assert all(one.target is two.source for one, two in pairwise(history))
    assert machine.state is (history[-1].target if history else State.STARTING)
    assert not {machine.best, machine.contest.challenger} & machine.contest.refused.keys()
    assert DEFAULT not in machine.contest.refused
    assert len(set(machine.variants)) == len(machine.variants)
    if machine.state is State.STARTING and machine.agenda.awaited is None:
        return
    if machine.state in (State.CLOSED, State.GIVEN_UP):
        assert machine.agenda.awaited is None
    if machine.state is State.CLOSED:
        return
    assert machine.contest.contenders[0] == machine.best
    assert (machine.contest.challenger is None) == (len(machine.contest.contenders) == 1)
    if machine.agenda.awaited is not None:
        with pytest.raises(IllegalMove):
            machine.next_runner()
        return
    runner = machine.next_runner()
    assert machine.next_runner() == runner, "asking changes nothing"
    searching = machine.state in (State.PROBING, State.PLANNING, State.TRYING)
    if isinstance(runner, SearchStep):
        assert searching
        assert isinstance(runner.step, Meanwhile) == (machine.state is State.PLANNING)
        return
    assert runner.contender in machine.contest.contenders
    assert machine.contest.challenger is None or machine.state is State.COMPARING
    if machine.state is State.GIVEN_UP:
        assert runner == ContenderStep(DEFAULT)
    elif machine.state is not State.RESUMED and machine.best.variant is not None:
        assert machine.best.variant in machine.variants


class Shell:
    """Carries out instructions as `Tuning` does, without running anything."""

    def __init__(
        self, machine: TuningMachine, *, captures: Any = True, backends: int = 0, compiled: bool = True
    ) -> None:  # fmt: skip
        self.machine, self.captures, self.backends, self.compiled = machine, captures, backends, compiled
        self.stage = SearchStage.OVER
        """How far the search for backends is; it begins when it may, where it waits."""
        self.plan_first = False
        """Whether one plan is to come before the search for backends."""
        self.done: list[Instruction] = []
        self.planning: Variant | None = None

    def look(self) -> None:
        """What comes before each step."""
        if self.stage is SearchStage.WAITS and self.machine.may_search_backends():
            self.machine.searches_backends()
            self.stage = SearchStage.WORKS
        if self.machine.state is State.SETTLED and self.stage is not SearchStage.WAITS:
            if self.backends:
                self.backends -= 1
                self.carry_out(self.machine.contest.found_backend(backend(f"backend {self.backends}")))
            else:
                self.stage = SearchStage.OVER
        due = self.machine.due(compiled=self.compiled, backends=self.stage, plan_first=lambda: self.plan_first)
        self.carry_out(due)

    def carry_out(self, instructions: Instructions) -> None:
        waiting = list(instructions)
        while waiting:
            self.done.append(instruction := waiting.pop(0))
            waiting.extend(self._answer(instruction))
            check_invariants(self.machine)

    def _answer(self, instruction: Instruction) -> Instructions:
        match instruction:
            case Capture(variant):
                there = self.captures if isinstance(self.captures, bool) else self.captures(variant)
                return self.machine.captured() if there else self.machine.not_captured()
            case MakePlan(variant):
                self.planning = variant
            case UsePlan() | LeaveOut():
                self.planning = None
            case Open(contender):
                return self.machine.contest.opened(contender)
        return ()


class World(Shell):
    """Each contender and each plan takes its own time."""

    def __init__(
        self, machine: TuningMachine, seconds: dict[ContenderId, float], *, captures: Any = True, backends: int = 0,
        compiled: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(machine, captures=captures, backends=backends, compiled=compiled)
        self.seconds, self.now_s, self.ran = seconds, 0.0, list[ContenderId]()
        self.looks: dict[Variant, float] = {}
        """Seconds of looks, where they are others than those of the plan."""

    def run(self, steps: int = 1, *, disturbed: bool = False, **observed: Any) -> None:
        for _ in range(steps):
            if self.planning is not None and self.machine.state is State.PLANNING:
                self.carry_out(self.machine.planned(self._seconds(plan_of(self.planning))))
                self.planning = None
            self.look()
            runner = self.machine.next_runner(disturbed=disturbed)
            contender = plan_of(runner.variant) if isinstance(runner, SearchStep) else runner.contender
            self.ran.append(contender)
            seconds = self._seconds(contender)
            if isinstance(runner, SearchStep) and isinstance(runner.step, Look):
                seconds = self.looks.get(runner.variant, seconds)
            self.carry_out(self.machine.observe(seconds, started_s=self.now_s, **observed))
            self.now_s += seconds

    def run_to(self, state: State) -> None:
        self.run_until(lambda: self.machine.state is state)

    def run_until(self, wanted: Callable[[], bool], *, limit: int = 10_000) -> None:
        for _ in range(limit):
            if wanted():
                return
            self.run()
        raise AssertionError(f"{self.machine.state} after {limit} steps: {self.machine.moves.history}")

    def _seconds(self, contender: ContenderId) -> float:
        return self.seconds.get(contender, 1.0)


def settled(seconds: dict[ContenderId, float], *, formats: int = 2, **more: Any) -> World:
    machine = TuningMachine(list(MemoryFormat)[:formats], LOOKS, fuse=more.pop("fuse", True))
    world = World(machine, seconds, **more)
    world.carry_out(machine.start())
    world.run_until(lambda: machine.state is State.SETTLED and machine.tried_fused and not world.backends)
    return world
