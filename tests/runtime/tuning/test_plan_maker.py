"""Plans are made from the caller's own steps, each of them a whole one."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from threadcast.capture.capture import capture_forward
from threadcast.core import Machine
from threadcast.runtime.plans.curves_in_step import STEPS, WARM_UP, probe_cases
from threadcast.runtime.tuning.plan_maker import PlanMaker
from threadcast.runtime.tuning.plan_search import PlanSearch
from threadcast.runtime.tuning.states import State
from threadcast.scheduler.simulation.checker import check_schedule

pytestmark = pytest.mark.usefixtures("planned_at_once")
MOST_STEPS = 2_000
"""Far more than a search takes."""


def test_every_step_is_a_whole_one_and_the_plan_is_of_the_graph(machine: Machine) -> None:
    runs = torch.zeros(1)

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.add_(1)
        return (x @ x).tanh() + (x.t() @ x).sin()

    captured, prepared = capture_forward(function, torch.ones(64, 64)), 0

    def before() -> None:
        nonlocal prepared
        prepared += 1

    x, search, steps = torch.eye(64) / 2, PlanSearch(probe_cases(machine)), 0
    expected = function(x)
    runs.zero_()
    with closing(PlanMaker(captured, machine, before=before)) as maker:
        while search.best is None:
            assert (steps := steps + 1) <= MOST_STEPS
            if search.moves.state is State.PLANNING and (plan := maker.poll()) is not None:
                search.planned(plan.makespan_s)
            result, makespan_s = maker.run(search.next_runner(), x)
            assert torch.allclose(result, expected)
            assert (makespan_s is None) == (search.moves.state is State.PLANNING)
            if search.observe(makespan_s or 0.0) and not maker.start_planning():
                search.nothing_to_correct()
    assert steps == prepared == runs.item()
    assert steps >= (len(probe_cases(machine)) + 1) * (WARM_UP + STEPS)
    made = maker.plans[search.best]
    assert made.problem.graph is captured.graph
    check_schedule(captured.graph, made.plan, machine=machine)
