"""Plans come from another process; without it, steps run as before."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
import torch

import threadcast
from tests.clock import Clock
from tests.runtime.conftest import SequentialPlanner
from tests.waiting import HANGS_S, eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Case, Machine, Trace, read_machine
from threadcast.core.errors import ExecutionError
from threadcast.runtime.plans.curves_in_step import curves_in_step
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.step_forecasts import Question
from threadcast.runtime.tuner import planning
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE
from threadcast.threads.affinity import thread_ids


def test_a_step_whose_planning_fails_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    x = torch.arange(4.0)
    with closing(threadcast.optimize(lambda x: x * 2)) as call:
        assert eventually(lambda: call(x).tolist() == [0, 2, 4, 6] and call.reports[0].runs == "default")
        assert "planning failed" in call.reports[0].reason


def test_a_plan_that_takes_too_long_is_given_up(planned_at_once: None) -> None:
    clock = Clock()
    graph = capture_forward(lambda x: x * 2, torch.ones(3)).graph
    planner = planning.Planner(read_machine(), clock=clock)
    asked = planner.ask(Question(graph, read_machine(), NATIVE_ENGINE, {}))
    clock.now_s = planning.ANSWER_S + 1.0
    for _ in range(2):
        with pytest.raises(ExecutionError, match="planning took longer than"):
            planner.answer(asked)
    assert planner.free


def test_a_plan_that_takes_long_leaves_all_cores_to_steps(planned_at_once: None) -> None:
    machine = Machine.uniform("four", 4)
    captured = capture_forward(lambda x: x * 2, torch.ones(3))
    table = curves_in_step(captured.graph, {Case(1): [_trace(captured, machine)]})
    question = Question(captured.graph, machine, NATIVE_ENGINE, {}, curves=table)
    clock, threads = Clock(), torch.get_num_threads()
    planner = planning.Planner(machine, clock=clock)
    torch.set_num_threads(4)
    try:
        planner.ask(question)
        assert planner.leaving_a_core(torch.get_num_threads) == 3
        clock.now_s = 5.0
        assert (planner.free, planner.yields) == (False, True)
        assert planner.free
        planner.ask(question)
        assert not planner.yields
        clock.now_s, planner.unlimited = 10.0, True
        assert (planner.works, planner.yields) == (True, False), "learning may lose any time"
    finally:
        torch.set_num_threads(threads)
        planner.close()


@pytest.mark.parametrize(("sets", "left"), [(None, 4), (2, 2)])
def test_a_number_of_threads_that_is_set_while_a_plan_is_made_stays(
    sets: int | None, left: int, planned_at_once: None
) -> None:
    """As where an arbiter takes cores away, which the main thread follows between two bytecodes."""
    machine, threads = Machine.uniform("four", 4), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        planning.Planner(machine).leaving_a_core(lambda: None if sets is None else torch.set_num_threads(sets))
        assert torch.get_num_threads() == left
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("known", "small", "most", "compiles"),
    [(True, 0, 0, True), (True, 1_000, 1_000, False), (False, 0, 10_000, False), (False, 0, 0, True)],
)
def test_loops_are_compiled_beside_steps_for_large_plans_alone(
    planned_at_once: None, monkeypatch: pytest.MonkeyPatch, *, known: bool, small: int, most: int, compiles: bool
) -> None:
    asked: list[bool] = []

    class Process(SequentialPlanner):
        def __init__(self, *, cpus: Collection[int], compiles: bool, background: bool) -> None:
            super().__init__(cpus=cpus, compiles=compiles, background=background)
            asked.append(compiles)

    monkeypatch.setattr(planning, "ForecastingPlanner", Process)
    monkeypatch.setattr(planning, "is_compiled", lambda: known)
    monkeypatch.setattr(planning, "SMALL", small)
    monkeypatch.setattr(planning, "AS_PYTHON", most)
    graph = capture_forward(lambda x: x * 2, torch.ones(3)).graph
    planner = planning.Planner(read_machine())
    planner.ask(Question(graph, read_machine(), NATIVE_ENGINE, {}))
    assert asked == [compiles]


def test_one_planner_answers_several_users_and_ends_with_the_last(planned_at_once: None) -> None:
    machine = read_machine()
    captured = capture_forward(lambda x: x * 2, torch.ones(3))
    table = curves_in_step(captured.graph, {Case(1): [_trace(captured, machine)]})
    question = Question(captured.graph, machine, NATIVE_ENGINE, {}, curves=table)
    planner, users = planning.Planner(machine), [_User(), _User()]
    for user in users:
        planner.begin(user)
    first = planner.ask(question)
    assert not planner.free, "the first look at it finds nothing"
    assert planner.free
    second = planner.ask(question)
    assert planner.answer(first) is not None
    planner.done(users[0])
    assert planner.answer(second) is None
    planner.done(users[1])
    with pytest.raises(ExecutionError, match="closed"):
        planner.answer(second)
    assert planner.answer(first) is not None


def test_a_planner_outlasts_the_thread_that_asked_first() -> None:
    """As in a server whose threads end after some requests."""
    machine = read_machine()
    captured = capture_forward(lambda x: x * 2, torch.ones(3))
    table = curves_in_step(captured.graph, {case: [_trace(captured, machine)] for case in machine.cases()})
    question = Question(captured.graph, machine, NATIVE_ENGINE, {}, curves=table)
    with closing(planning.Planner(machine)) as planner:

        def ask() -> planning.Asked:
            asked = planner.ask(question)
            planner.wait(HANGS_S)
            return asked

        with ThreadPoolExecutor(1) as executor:
            first = executor.submit(ask).result()
            (thread,) = (thread.native_id for thread in executor._threads)
        eventually(lambda: thread not in thread_ids())
        assert planner.answer(first) is not None
        assert planner.answer(ask()) is not None


class _User:
    """Whoever may ask."""


def _trace(captured: Captured, machine: Machine) -> Trace:
    plan = sequential(captured.graph, machine, Case(1))
    return Trace(len(machine), plan.policy, tuple(replace(op, finish_s=op.start_s + 1.0) for op in plan.ops))
