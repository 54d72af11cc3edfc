"""How a plan is prepared, part by part, what each part is expected to cost, and when it is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from threadcast.core import Case, CurveTable, Placement, Plan
from threadcast.core.errors import ExecutionError
from threadcast.runtime.plans.curves_in_step import WARM_UP, LookSchedule
from threadcast.runtime.plans.step_forecasts import Answer
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner import plan_candidate
from threadcast.runtime.tuner.events import LeftOut, Place, Ready, Staged
from threadcast.runtime.tuner.looks import Look
from threadcast.runtime.tuner.plan_candidate import (
    ASIDE_STEPS,
    CHECK_STEPS,
    FORECAST_S,
    PLANNING_S,
    UNKNOWN,
    Calls,
    Means,
    PlanCandidate,
)

LOOKS = LookSchedule((Case(2), Case(1)), 2, 5)
VARIANT = Variant(MemoryFormat.AS_GIVEN)
MS = 1e-3
CALLS = Calls(best_s=1.0 * MS, eager_s=1.0 * MS, other=False)
OTHER = Calls(best_s=1.0 * MS, eager_s=1.0 * MS, other=True)
"""Calls for which something else is faster than PyTorch, or planned."""


def answer(predicted_s: float, pessimistic_s: float | None = None) -> Answer:
    times = np.full((1, 1), predicted_s)
    curves = CurveTable((Case(1),), times, times, times, np.zeros((1, 1), dtype=np.int8), "test")
    return Answer(Plan(1, "test", (Placement("op", (0,), 1, 0.0, predicted_s),)), curves, pessimistic_s or predicted_s)


@pytest.fixture(autouse=True)
def any_graph_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are names here."""
    monkeypatch.setattr(plan_candidate, "why_not", lambda _: None)


class World:
    """A candidate whose graph, planner and engines are told what they give."""

    def __init__(self, *, aside: bool = False, known: bool = False, graph: bool = True) -> None:
        self.compiled, self.answers, self.opened = True, list[Answer | Exception | None](), list[Any]()
        self.goes_on, self.begun = list[bool](), list[Variant]()
        maker = self.maker = SimpleNamespace(
            start_planning=self._start_planning, poll=self._poll, problem=lambda _: None, works=False,
            prepare=lambda look, goes_on: self.goes_on.append(goes_on),
            captured=SimpleNamespace(graph=None), close=lambda: None,
        )  # fmt: skip
        graphs = SimpleNamespace(
            compiled=lambda _: self.compiled, find=lambda _: "a graph" if graph else None,
            as_captured=lambda _: SimpleNamespace(graph=None),
        )  # fmt: skip
        contenders = SimpleNamespace(open_plan=lambda found: not self.opened.append(found.plan))  # type: ignore[func-returns-value]
        first_steps = SimpleNamespace(looks=LOOKS, aside=aside, forget=lambda *_, **__: None)

        def make(_: object, variant: Variant) -> Any:
            self.begun.append(variant)
            return maker

        means = Means(graphs, contenders, first_steps, make, known)  # type: ignore[arg-type]
        self.candidate = PlanCandidate(VARIANT, means)

    def _start_planning(self) -> None:
        if self.answers and isinstance(self.answers[0], OSError):
            raise self.answers.pop(0)  # type: ignore[misc]
        self.maker.works = True

    def _poll(self) -> Answer | None:
        found = self.answers.pop(0)
        self.maker.works = found is None
        if isinstance(found, Exception):
            raise found
        return found

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
        self.answers += answers
        self.candidate.prepare(calls)
        while self.answers:
            assert self.place is Place.BESIDE
            assert self.candidate.works
            self.candidate.poll(calls)

    def looked(self, first_s: float = MS, second_s: float = MS) -> World:
        self.candidate.prepare(CALLS)
        assert [self.run(first_s), self.run(second_s)] == [WARM_UP + LOOKS.steps] * 2
        return self


def test_a_plan_is_captured_looked_at_and_made() -> None:
    world = World()
    assert world.stage() == Staged(world.candidate.key, Place.BETWEEN)
    world.looked()
    assert world.stage() == Staged(world.candidate.key, Place.BETWEEN, PLANNING_S)
    made = answer(0.8 * MS)
    world.plan(None, None, made)
    assert world.candidate.step == Look(VARIANT, 1)
    assert world.stage() == Ready(world.candidate.key, 0.8 * MS, CHECK_STEPS * MS)
    assert (world.opened, world.begun, world.candidate.works) == ([made.plan], [VARIANT], False)
    world.candidate.prepare(CALLS)
    assert world.opened == [made.plan] * 2, "as after it had lost"


def test_what_is_compiled_for_it_is_waited_for_beside_calls() -> None:
    world = World()
    world.compiled = False
    world.candidate.prepare(CALLS)
    assert (world.place, world.candidate.poll(CALLS), world.candidate.works) == (Place.BESIDE, False, True)
    world.compiled = True
    assert (world.candidate.poll(CALLS), world.place, world.candidate.works) == (True, Place.BETWEEN, False)
    world.looked()


def test_without_a_graph_there_is_no_plan() -> None:
    world = World(graph=False)
    world.candidate.prepare(CALLS)
    assert world.stage() == LeftOut(world.candidate.key, "no graph could be captured")


@pytest.mark.parametrize(("calls", "left_out"), [(CALLS, False), (OTHER, True)])
def test_a_first_look_or_plan_that_is_far_slower_is_the_last_where_something_else_is_known(
    calls: Calls, left_out: bool
) -> None:
    world = World()
    world.candidate.prepare(calls)
    world.run(1.6 * MS, calls)
    assert isinstance(world.stage(), LeftOut) == world.candidate.left_out == left_out
    world = World().looked()
    world.plan(answer(1.06 * MS), calls=calls)
    assert isinstance(world.stage(), LeftOut) == left_out
    world = World().looked()
    world.plan(answer(1.04 * MS), calls=calls)
    assert isinstance(world.stage(), Ready)


@pytest.mark.parametrize("error", [OSError("too many open files"), ExecutionError("no memory")])
def test_where_no_plan_can_be_made_it_is_left_out_with_the_reason(error: Exception) -> None:
    world = World().looked()
    world.plan(error)
    assert world.stage() == LeftOut(world.candidate.key, str(error))


@pytest.mark.parametrize(("pessimistic_s", "tried"), [(0.9, True), (1.1, False), (None, False)])
def test_what_is_known_of_operators_makes_a_plan_of_long_steps_before_any_look(
    pessimistic_s: float | None, tried: bool
) -> None:
    short, long = World(known=True), World(known=True)
    step_s = 1.1 * FORECAST_S / LOOKS.calls
    calls = Calls(step_s, step_s, other=False)
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


def test_parts_in_calls_are_expected_to_cost_what_is_known_of_them() -> None:
    world = World()
    world.candidate.prepare(CALLS)
    steps = WARM_UP + LOOKS.steps
    assert cost_s(world) == pytest.approx((CHECK_STEPS + steps * UNKNOWN) * MS)
    world.run(1.2 * MS)
    slower = 1.2 * LOOKS.slowdown(1) - 1
    assert cost_s(world) == pytest.approx((CHECK_STEPS + steps * slower) * MS)
    world.candidate.begin(anew=False)
    world.candidate.observe(3.0 * MS, CALLS)
    world.candidate.begin(anew=True)
    assert world.goes_on[-1] is False
    assert cost_s(world) == pytest.approx(steps * 2.0 * MS), "as it showed before it was broken off"


def test_looks_aside_are_expected_to_cost_all_that_they_take() -> None:
    world = World(aside=True)
    world.candidate.prepare(CALLS)
    assert cost_s(world) == pytest.approx(((WARM_UP + LOOKS.steps) * (1 + UNKNOWN) + ASIDE_STEPS) * MS)
    assert [world.run(MS), world.run(MS)] == [1, 1]


def test_what_is_left_out_while_a_plan_is_made_waits_for_nothing() -> None:
    world = World().looked()
    world.candidate.prepare(CALLS)
    assert world.candidate.works
    world.candidate.leave_out("its results differ")
    assert (world.candidate.works, world.candidate.poll(CALLS)) == (False, False)
