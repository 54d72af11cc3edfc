"""Plans for fewer cores: which there are, that they are made in the background, and that the engine goes by them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import made_up_curves, make_random_plan
from tests.waiting import HANGS_S, eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Core, Machine, Plan
from threadcast.core.errors import EngineClosed, ExecutionError
from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.plans.malleable_plan import MalleablePlan, counts_below
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner.call_plans import CallPlans
from threadcast.runtime.tuner.candidate import VariantPlan
from threadcast.runtime.tuner.core_follower import CoreFollower
from threadcast.scheduler.policies import Problem


class Noting:
    """Stands for an engine on a machine that this one is not."""

    def __init__(self, captured: Captured) -> None:
        self.captured, self.ready, self.changed = captured, list[int](), list[tuple[Plan, list[int]]]()

    def prepare(self, plan: Plan, machine: Machine) -> None:
        assert {core for op in plan.ops for core in op.cores} <= {core.id for core in machine.cores}
        self.ready.append(len(machine))

    def change(self, plan: Plan, machine: Machine, cores: tuple[Core, ...]) -> None:
        assert len(cores) == len(machine)
        self.changed.append((plan, [core.id for core in cores]))


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture_forward(lambda x: [(x * i).sum() for i in range(9)], torch.ones(16))


@pytest.fixture(scope="module")
def big() -> Machine:
    return Machine.uniform("four", 4)


def test_every_small_number_of_cores_has_a_plan_and_large_ones_one_nearby() -> None:
    assert counts_below(1) == []
    assert counts_below(17) == list(range(16, 0, -1))
    many = counts_below(257)
    assert many[-16:] == list(range(16, 0, -1))
    assert len(many) < 45
    for cores in range(1, 257):
        assert any(cores * 7 / 8 <= count <= cores for count in many)


@pytest.mark.system
def test_plans_are_made_in_the_background_and_followed(captured: Captured, big: Machine) -> None:
    whole = make_random_plan(captured.graph, (0, 1, 2, 3), seed=0)
    engine, made, done = Noting(captured), dict[int, Plan](), threading.Event()

    def note(plans: Mapping[int, Plan]) -> None:
        made.update(plans)
        done.set()

    problem = Problem(captured.graph, made_up_curves(captured.graph, big), big)
    with closing(MalleablePlan(engine, whole, big, problem, {}, done=note)) as following:
        following.resize(big.cores[1:3])  # perhaps before there is a plan for two
        assert not following.whole
        assert {op.id for op in engine.changed[0][0].ops} == set(captured.graph.ids)
        assert done.wait(HANGS_S)
        assert engine.ready == [3, 2, 1]
        assert engine.changed[-1] == (made[2], [1, 2])
        following.resize(big.cores[3:])
        assert engine.changed[-1] == (made[1], [3])
        following.resize(big.cores)
        assert engine.changed[-1] == (whole, [0, 1, 2, 3])
        assert following.whole
    assert all(plan.cores == count for count, plan in made.items())


def test_without_a_problem_only_known_plans_serve(captured: Captured, big: Machine) -> None:
    whole, three = (make_random_plan(captured.graph, tuple(range(n)), seed=0) for n in (4, 3))
    engine, done = Noting(captured), threading.Event()
    with closing(MalleablePlan(engine, whole, big, None, {3: three}, done=lambda _: done.set())) as following:
        assert done.wait(HANGS_S)
        following.resize(big.cores[:3])
        assert engine.changed[-1][0] is three
        following.resize(big.cores[:2])
        plan = engine.changed[-1][0]
        assert (plan.cores, {op.threads for op in plan.ops}) == (2, {2}), "one operator after the other, on both"


class NeverReady:
    """A planner's process that has no plan yet."""

    def __init__(self, *, background: bool) -> None:
        """Nothing to start."""

    def ask(self, problem: Problem) -> None:
        """Begin."""

    def result(self) -> None:
        """None yet."""

    def close(self) -> None:
        """Nothing to end."""


def test_a_model_that_is_dropped_ends_the_planning(
    captured: Captured, big: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadcast.runtime.plans.malleable_plan.PlannerProcess", NeverReady)
    whole = make_random_plan(captured.graph, (0, 1, 2, 3), seed=0)
    problem = Problem(captured.graph, made_up_curves(captured.graph, big), big)
    variant_plan = VariantPlan(Variant(MemoryFormat.AS_GIVEN), captured, whole, captured.graph, problem)
    stored = CallPlans(PlanStore(tmp_path, big), big, call="a call")
    follower, engine = CoreFollower(big), Noting(captured)
    follower.follow(engine, variant_plan, stored)  # type: ignore[arg-type]
    gone = weakref.ref(engine)
    del stored, follower, engine
    assert eventually(lambda: gc.collect() >= 0 and gone() is None)


def test_planning_that_fails_leaves_one_op_after_the_other(
    captured: Captured, big: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ExecutionError("no")

    monkeypatch.setattr("threadcast.runtime.plans.malleable_plan.PlannerProcess", failing)
    problem = Problem(captured.graph, made_up_curves(captured.graph, big), big)
    engine, done = Noting(captured), threading.Event()
    whole = make_random_plan(captured.graph, (0, 1, 2, 3), seed=0)
    with closing(MalleablePlan(engine, whole, big, problem, {}, done=lambda _: done.set())) as following:
        assert done.wait(HANGS_S)
        following.resize(big.cores[:3])
        assert {op.threads for op in engine.changed[-1][0].ops} == {3}


def test_a_closed_engine_is_left_alone_without_a_message(
    captured: Captured, big: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    class Closed(Noting):
        def prepare(self, plan: Plan, machine: Machine) -> None:
            raise EngineClosed("the engine is closed")

        def change(self, plan: Plan, machine: Machine, cores: tuple[Core, ...]) -> None:
            raise EngineClosed("the engine is closed")

    problem = Problem(captured.graph, made_up_curves(captured.graph, big), big)
    whole = make_random_plan(captured.graph, (0, 1, 2, 3), seed=0)
    one = make_random_plan(captured.graph, (0,), seed=0)
    done = threading.Event()
    with closing(
        MalleablePlan(Closed(captured), whole, big, problem, {1: one}, done=lambda _: done.set())
    ) as following:
        following.resize(big.cores[:1])
        following.resize(big.cores)
        assert done.wait(HANGS_S)
    assert not caplog.records


@pytest.mark.system
@needs_compiler
def test_a_process_that_ends_while_plans_of_fewer_cores_are_made_prints_nothing() -> None:
    script = """
import math, torch, threadcast
from torch import nn
from threadcast.runtime.tuner import planning
planning.ANSWER_S = math.inf  # else a slow machine's plan may be given up, which is said
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
step = threadcast.optimize_training(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
calls = 0
while calls < 2000 and not (step.reports and step.reports[0].runs == "plan"):
    step(torch.ones(4, 8), torch.ones(4, 1))
    calls += 1
"""
    native_library()  # else the process says that it compiles it
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
