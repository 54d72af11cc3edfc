"""Plans come from a process of their own, which ends with whoever asked for one."""

from __future__ import annotations

import os
from contextlib import closing

import pytest
import torch

import threadcast
from tests.runtime.random_plans import made_up_curves
from tests.waiting import eventually
from threadcast.capture.capture import Captured, capture_forward
from threadcast.core import Machine, Plan
from threadcast.core.errors import ExecutionError
from threadcast.runtime.plans.planning import Planning
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.simulation.checker import check_schedule


@pytest.fixture(scope="module")
def problem(machine: Machine) -> Problem:
    captured: Captured = capture_forward(lambda x: [(x * i).sum() for i in range(9)], torch.ones(16))
    return Problem(captured.graph, made_up_curves(captured.graph, machine), machine)


def awaited(making: Planning) -> Plan:
    assert eventually(making.result)
    plan = making.result()
    assert plan is not None
    return plan


def test_a_plan_comes_and_is_one_of_the_graph(problem: Problem) -> None:
    with closing(Planning(problem)) as making:
        plan = awaited(making)
    check_schedule(problem.graph, plan, machine=problem.machine)
    assert plan.lower_bound_s > 0


def test_closing_ends_the_process(problem: Problem) -> None:
    making = Planning(problem)
    making.close()
    making.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(making.process, os.WNOHANG)


def test_a_process_that_fails_says_why(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with closing(Planning(problem)) as making, pytest.raises(ExecutionError, match="planning failed"):
        awaited(making)


def test_a_step_whose_planning_fails_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    x = torch.arange(4.0)
    with closing(threadcast.optimize(lambda x: x * 2)) as call:
        for _ in range(40):
            assert call(x).tolist() == [0, 2, 4, 6]
        (report,) = call.reports
        assert (report.runs, "planning failed" in report.reason) == ("default", True)
