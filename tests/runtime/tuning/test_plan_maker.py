"""Plans come from another process; without it, steps run as before."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

import threadcast
from threadcast.capture.capture import capture_forward
from threadcast.core import read_machine
from threadcast.core.errors import ExecutionError
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
    assert planner.answer() is None, "nothing was asked"
    planner.ask(Question(graph, read_machine(), NATIVE_ENGINE, {}))
    with pytest.raises(ExecutionError, match="planning took longer than"):
        planner.answer()
    assert planner.answer() is None
