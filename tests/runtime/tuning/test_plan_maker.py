"""Plans come from another process; without it, steps run as before."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch

import threadcast
from threadcast.capture.capture import Captured, capture_forward
from threadcast.core import Case, Machine, Trace, read_machine
from threadcast.core.errors import ExecutionError
from threadcast.runtime.plans.curves_in_step import curves_in_step
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.step_forecasts import Question
from threadcast.runtime.tuning import plan_maker
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE


def test_a_step_whose_planning_fails_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    x = torch.arange(4.0)
    with closing(threadcast.optimize(lambda x: x * 2)) as call:
        for _ in range(40):
            assert call(x).tolist() == [0, 2, 4, 6]
        (report,) = call.reports
        assert (report.runs, "planning failed" in report.reason) == ("default", True)


def test_a_plan_that_takes_too_long_is_given_up(planned_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_maker, "ANSWER_S", -1.0)
    graph = capture_forward(lambda x: x * 2, torch.ones(3)).graph
    planner = plan_maker.Planner(read_machine())
    asked = planner.ask(Question(graph, read_machine(), NATIVE_ENGINE, {}))
    for _ in range(2):
        with pytest.raises(ExecutionError, match="planning took longer than"):
            planner.answer(asked)
    assert planner.free


def test_one_planner_answers_several_users_and_ends_with_the_last(planned_at_once: None) -> None:
    machine = read_machine()
    captured = capture_forward(lambda x: x * 2, torch.ones(3))
    table = curves_in_step(captured.graph, {Case(1): [_trace(captured, machine)]})
    question = Question(captured.graph, machine, NATIVE_ENGINE, {}, curves=table)
    planner, users = plan_maker.Planner(machine), [_User(), _User()]
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


class _User:
    """Whoever may ask."""


def _trace(captured: Captured, machine: Machine) -> Trace:
    plan = sequential(captured.graph, machine, Case(1))
    return Trace(len(machine), plan.policy, tuple(replace(op, finish_s=op.start_s + 1.0) for op in plan.ops))
