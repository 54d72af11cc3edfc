"""How a plan is prepared, part by part, what each part is expected to cost, and when it is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.runtime.conftest import SequentialPlanner
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Case, CurveTable, Machine
from threadcast.core.errors import ExecutionError
from threadcast.runtime.plans.curves_in_step import WARM_UP, LookSchedule
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.step_forecasts import Answer
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner import planning
from threadcast.runtime.tuner.candidate import Calls
from threadcast.runtime.tuner.events import LeftOut, Place, Ready, Staged
from threadcast.runtime.tuner.looks import Look
from threadcast.runtime.tuner.plan_candidate import (
    ASIDE_STEPS,
    CHECK_STEPS,
    FORECAST_S,
    PLANNING_S,
    UNKNOWN,
    Means,
    PlanCandidate,
)
from threadcast.runtime.tuner.planning import Planner

X = torch.arange(4.0)
CAPTURED = capture_forward(lambda x: x * 2, X)
OPS = len(CAPTURED.graph)
LOOKS = LookSchedule((Case(1), Case(1)), 3, 5)
VARIANT = Variant(MemoryFormat.AS_GIVEN)
MS = 1e-3
CALLS = Calls(best_s=1.0 * MS, eager_s=1.0 * MS, other=False)
OTHER = Calls(best_s=1.0 * MS, eager_s=1.0 * MS, other=True)
"""Calls for which something else is faster than PyTorch, or planned."""


def answer(predicted_s: float, pessimistic_s: float | None = None) -> Answer:
    """A plan that takes so long, by its own account."""
    plan, times = sequential(CAPTURED.graph, Machine.uniform("one", 1), Case(1)), np.full((OPS, 1), predicted_s)
    curves = CurveTable((Case(1),), times, times, times, np.zeros(times.shape, dtype=np.int8), "test")
    last = replace(plan.ops[-1], start_s=0.0, finish_s=predicted_s)
    return Answer(replace(plan, ops=(*plan.ops[:-1], last)), curves, pessimistic_s or predicted_s)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "ForecastingPlanner", Answers)


class Answers(SequentialPlanner):
    """A planner's process that gives the answers that it is told: None while it works, an error where it ends."""

    told: ClassVar[list[Answer | Exception | None]] = []

    def forecast(self) -> Answer | None:
        found = self.told.pop(0) if self.told else None
        if isinstance(found, Exception):
            raise found
        return found


class World:
    """A candidate that is looked at by real engines; its compilers and planner are told what they give."""

    def __init__(self, machine: Machine, *, aside: bool = False, store: str | None = None, graph: bool = True) -> None:
        self.compiled, self.planner = True, Planner(machine)
        graphs = SimpleNamespace(
            compiled=lambda _: self.compiled, find=lambda _: CAPTURED if graph else None, as_captured=lambda _: CAPTURED
        )
        first_steps = SimpleNamespace(looks=LOOKS, aside=aside, forget=lambda *_: None)
        means = Means(graphs, machine, ModelFormat(None), first_steps, self.planner, store)  # type: ignore[arg-type]
        self.candidate = PlanCandidate(VARIANT, means)

    def close(self) -> None:
        self.candidate.close()
        self.planner.close()

    def stage(self, calls: Calls = CALLS) -> Staged | Ready | LeftOut:
        return self.candidate.stage(calls)

    @property
    def place(self) -> Place:
        stage = self.stage()
        assert isinstance(stage, Staged)
        return stage.place

    def run(self, step_s: float, calls: Calls = CALLS) -> int:
        """Run a look whose steps take so long; the number of its steps."""
        count, begun = 0, True
        while begun and self.place is Place.CALL:
            self.candidate.begin(anew=False)
            self.candidate.observe(step_s, calls)
            count += 1
            stage = self.stage()
            begun = isinstance(stage, Staged) and stage.begun
            if not isinstance(stage, Staged):
                break
        return count

    def plan(self, *answers: Answer | Exception | None, calls: Calls = CALLS) -> None:
        """Have a plan made, of which these are the answers."""
        Answers.told[:] = answers
        self.candidate.prepare(calls)
        while Answers.told:
            assert self.place is Place.BESIDE
            assert self.candidate.works
            self.candidate.poll(calls)

    def looked(self, first_s: float = MS, second_s: float = MS) -> World:
        self.candidate.prepare(CALLS)
        assert [self.run(first_s), self.run(second_s)] == [WARM_UP + LOOKS.steps] * 2
        return self


@pytest.fixture
def world(machine: Machine) -> Iterator[World]:
    with closing(World(machine)) as made:
        yield made


def test_a_plan_is_captured_looked_at_made_closed_and_opened_again(world: World) -> None:
    assert world.stage() == Staged(world.candidate.key, Place.BETWEEN)
    world.looked()
    assert world.stage() == Staged(world.candidate.key, Place.BETWEEN, PLANNING_S)
    world.plan(None, None, Answer(look=(Case(1),) * OPS))
    assert world.run(MS) == WARM_UP + LOOKS.steps, "one more was asked for"
    made = answer(0.8 * MS)
    world.plan(None, made)
    candidate = world.candidate
    assert candidate.found is not None
    assert (candidate.found.plan, candidate.works) == (made.plan, False)
    assert world.stage() == Ready(candidate.key, 0.8 * MS, CHECK_STEPS * MS)
    for _ in range(2):  # it has lost, and runs again
        assert candidate.way is not None
        assert candidate.way.run(X).equal(X * 2)
        candidate.close()
        assert candidate.way is None
        candidate.prepare(CALLS)


def test_what_is_compiled_for_it_is_waited_for_beside_calls(world: World) -> None:
    world.compiled = False
    world.candidate.prepare(CALLS)
    assert (world.place, world.candidate.poll(CALLS), world.candidate.works) == (Place.BESIDE, False, True)
    world.compiled = True
    assert (world.candidate.poll(CALLS), world.place, world.candidate.works) == (True, Place.BETWEEN, False)
    world.looked()


def test_without_a_graph_there_is_no_plan(machine: Machine) -> None:
    with closing(World(machine, graph=False)) as world:
        world.candidate.prepare(CALLS)
        assert world.stage() == LeftOut(world.candidate.key, "no graph could be captured")


@pytest.mark.parametrize(
    ("look_s", "plan_s", "calls", "left_out"),
    [
        (1.6, 0.0, CALLS, False), (1.6, 0.0, OTHER, True), (1.4, 0.0, OTHER, False),
        (1.0, 1.06, CALLS, False), (1.0, 1.06, OTHER, True), (1.0, 1.04, OTHER, False),
    ],
)  # fmt: skip
def test_a_first_look_or_plan_that_is_far_slower_is_the_last_where_something_else_is_known(
    world: World, look_s: float, plan_s: float, calls: Calls, left_out: bool
) -> None:
    world.candidate.prepare(calls)
    world.run(look_s * MS, calls)
    if plan_s:
        world.run(9.0 * MS, calls)
        world.plan(answer(plan_s * MS), calls=calls)
    assert isinstance(world.stage(), LeftOut) == world.candidate.left_out == left_out


def test_where_no_plan_can_be_made_or_is_wanted_it_is_left_out_with_the_reason(machine: Machine) -> None:
    for wanted in (True, False):
        with closing(World(machine)) as world:
            world.looked()
            if wanted:
                world.plan(ExecutionError("no memory"))
            else:
                world.plan()
                assert world.candidate.works
                world.candidate.leave_out("no memory")
            assert world.stage() == LeftOut(world.candidate.key, "no memory")
            assert (world.candidate.works, world.candidate.poll(CALLS), world.planner.free) == (False, False, True)


@pytest.mark.parametrize(("pessimistic_s", "tried"), [(0.9, True), (1.1, False), (None, False)])
def test_what_is_known_of_operators_makes_a_plan_of_long_steps_before_any_look(
    machine: Machine, tmp_path: Path, pessimistic_s: float | None, tried: bool
) -> None:
    (tmp_path / "store.db").touch()
    step_s, known = 1.1 * FORECAST_S / LOOKS.calls, f"sqlite:///{tmp_path}/store.db"
    calls = Calls(step_s, step_s, other=False)
    with closing(World(machine, store=known)) as short, closing(World(machine, store=known)) as long:
        short.candidate.prepare(CALLS)
        assert short.place is Place.CALL
        long.candidate.prepare(calls)
        assert long.place is Place.BETWEEN
        long.plan(Answer() if pessimistic_s is None else answer(0.8 * step_s, pessimistic_s * step_s), calls=calls)
        assert isinstance(long.stage(), Ready) == tried
        if not tried:
            assert long.candidate.begin(anew=False) == Look(VARIANT, 0)


def cost_s(world: World) -> float:
    stage = world.stage()
    assert isinstance(stage, Staged)
    return stage.cost_s


def test_parts_in_calls_are_expected_to_cost_what_is_known_of_them(world: World) -> None:
    world.candidate.prepare(CALLS)
    steps = WARM_UP + LOOKS.steps
    assert cost_s(world) == pytest.approx((CHECK_STEPS + steps * UNKNOWN) * MS)
    world.run(1.2 * MS)
    slower = 1.2 * LOOKS.slowdown(1) - 1
    assert cost_s(world) == pytest.approx((CHECK_STEPS + steps * slower) * MS)
    world.candidate.begin(anew=False)
    world.candidate.observe(3.0 * MS, CALLS)
    world.candidate.begin(anew=True)
    assert cost_s(world) == pytest.approx(steps * 2.0 * MS), "as it showed before it was broken off"


def test_looks_aside_are_expected_to_cost_all_that_they_take(machine: Machine) -> None:
    with closing(World(machine, aside=True)) as world:
        world.candidate.prepare(CALLS)
        assert cost_s(world) == pytest.approx(((WARM_UP + LOOKS.steps) * (1 + UNKNOWN) + ASIDE_STEPS) * MS)
        assert [world.run(MS), world.run(MS)] == [1, 1]
