"""Plans are made from the caller's own steps, each of them a whole one, until a plan takes as long as it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from threadcast.capture.capture import Captured, capture_forward
from threadcast.core import Machine, Plan, Trace
from threadcast.runtime import plan_maker
from threadcast.runtime.in_step import STEPS, WARM_UP, probe_cases
from threadcast.runtime.plan_maker import MOST_PLANS, Made, PlanMaker
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.simulation.checker import check_schedule


@pytest.fixture
def captured() -> tuple[Captured, Tensor]:
    """A graph with two branches, and a tensor that counts its runs."""
    runs = torch.zeros(1)

    def function(x: Tensor) -> Tensor:
        runs.add_(1)
        return (x @ x).tanh() + (x.t() @ x).sin()

    return capture_forward(function, torch.ones(64, 64)), runs


def driven(maker: PlanMaker, x: Tensor) -> tuple[Made, list[Tensor]]:
    """What was made, and what each step on the way returned."""
    making, results = maker.made(), []
    try:
        while True:
            results.append(next(making)(x))
    except StopIteration as end:
        return end.value, results


def test_every_step_is_a_whole_one_and_the_plan_is_of_the_graph(
    captured: tuple[Captured, Tensor], machine: Machine
) -> None:
    graph, runs = captured
    laid = 0

    def before() -> None:
        nonlocal laid
        laid += 1

    maker = PlanMaker(graph, machine, before=before)
    x = torch.eye(64) / 2
    made, results = driven(maker, x)
    assert all(torch.allclose(result, (x @ x).tanh() + (x.t() @ x).sin()) for result in results)
    assert len(results) == laid == runs.item()
    assert laid >= (len(probe_cases(machine)) + 1) * (WARM_UP + STEPS)
    assert made.step_s > 0
    assert made.problem.graph is graph.graph
    check_schedule(graph.graph, made.plan, machine=machine)


@pytest.mark.parametrize(
    ("predicted_s", "taken_s", "plans", "kept"),
    [
        ([1.0], [1.04], 1, 0),
        ([1.0, 1.5], [1.5, 1.52], 2, 1),
        ([1.0, 1.1, 1.2, 1.3], [2.0, 2.0, 2.0, 2.06], MOST_PLANS, 3),
        ([1.0, 1.1, 1.2, 1.3], [2.0, 2.5, 2.0, 2.6], MOST_PLANS, 2),
    ],
)
def test_plans_are_made_until_one_holds_and_a_much_slower_one_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, captured: tuple[Captured, Tensor], machine: Machine,
    predicted_s: list[float], taken_s: list[float], plans: int, kept: int,
) -> None:  # fmt: skip
    graph, _ = captured
    made: list[Plan] = []
    probes = len(probe_cases(machine))
    traced: list[Plan] = []

    class Planned:
        """In place of the planner: sequential plans, each as long as told."""

        def __init__(self, problem: Problem) -> None:
            made.append(lasting(plan_maker.sequential(problem.graph, machine, probe_cases(machine)[0]), len(made)))

        def result(self) -> Plan:
            return made[-1]

        def close(self) -> None:
            pass

    def lasting(plan: Plan, number: int) -> Plan:
        scale = predicted_s[number] / plan.makespan_s
        ops = tuple(replace(op, start_s=op.start_s * scale, finish_s=op.finish_s * scale) for op in plan.ops)
        return replace(plan, policy=f"plan {number}", ops=ops)

    def run_traced(self: PlanMaker, plan: Plan, traces: list[Trace]) -> Iterator[Callable[..., Tensor]]:
        traced.append(plan)
        took_s = taken_s[len(traced) - probes - 1] if len(traced) > probes else 1.0
        scale = took_s / plan.makespan_s
        ops = tuple(replace(op, start_s=op.start_s * scale, finish_s=op.finish_s * scale) for op in plan.ops)
        traces.append(Trace(plan.cores, plan.policy, ops))
        yield lambda x: x

    monkeypatch.setattr(plan_maker, "Planning", Planned)
    monkeypatch.setattr(PlanMaker, "_traced", run_traced)
    found, _ = driven(PlanMaker(graph, machine, before=lambda: None), torch.ones(64, 64))
    assert (len(made), found.plan.policy, found.step_s) == (plans, f"plan {kept}", pytest.approx(taken_s[kept]))
