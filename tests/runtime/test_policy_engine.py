"""A policy that decides while the step runs: right results, real times, and its contract enforced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.runtime.random_plans import made_up_curves
from threadcast import networks
from threadcast.capture.capture import Captured, capture_forward, capture_training
from threadcast.core import Machine
from threadcast.core.errors import IllegalLaunch, PlanError
from threadcast.runtime.executors import Executors
from threadcast.runtime.policy_engine import PolicyEngine
from threadcast.scheduler.policies import Launch, Policy, Problem, State, create, names
from threadcast.scheduler.simulation.checker import check_schedule

OPTIONS: dict[str, dict[str, Any]] = {"uniform": {"inter": 2, "intra": 2}}
"""What policies need to be made; two executors of two threads oversubscribe two cores."""


def problem_of(captured: Captured, machine: Machine) -> Problem:
    return Problem(captured.graph, made_up_curves(captured.graph, machine), machine)


@pytest.fixture(scope="module")
def step() -> Captured:
    work = networks.load("inception_block", "tiny")
    optimizer = torch.optim.SGD(work.model.parameters(), lr=0.01)
    return capture_training(work.model, work.loss, optimizer, work.inputs, work.target)


@pytest.mark.parametrize("name", names())
def test_every_policy_gives_what_the_program_gives(
    name: str, step: Captured, machine: Machine, executors: Executors
) -> None:
    engine = PolicyEngine(step, create(name, problem_of(step, machine), **OPTIONS.get(name, {})), executors=executors)
    state = [value for value in step.held.values() if isinstance(value, torch.Tensor)]
    before = [value.clone() for value in state]
    expected = pytree.tree_map_only(torch.Tensor, torch.clone, step.run())
    for value, old in zip(state, before, strict=True):
        value.data.copy_(old)
    found, trace = engine.run_traced(step.bind())
    for value, old in zip(state, before, strict=True):
        value.data.copy_(old)
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    check_schedule(step.graph, trace, machine=machine, oversubscribed=True)
    assert trace.policy == engine.policy.name


def branches(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + x.cos()


class Careless(Policy):
    """Launches what it was made to launch, first of all."""

    name = "careless"

    def __init__(self, problem: Problem, launches: Callable[[State], Sequence[Launch]]) -> None:
        super().__init__(problem)
        self._launches = launches

    def decide(self, state: State) -> Sequence[Launch]:
        return self._launches(state)


def raise_lookup_error(state: State) -> Any:
    raise LookupError("in the policy")


@pytest.mark.parametrize(
    ("launches", "error"),
    [
        (lambda state: [], IllegalLaunch),
        (lambda state: [Launch(2, state.idle[:1], 1)], IllegalLaunch),
        (lambda state: [Launch(op, state.idle[:1], 1) for op in state.ready], IllegalLaunch),
        (lambda state: [Launch(next(iter(state.ready)), (4711,), 1)], IllegalLaunch),
        (raise_lookup_error, LookupError),
    ],
)
def test_a_policy_that_breaks_its_contract_ends_the_step(
    launches: Callable[[State], Sequence[Launch]], error: type[Exception], machine: Machine, executors: Executors
) -> None:
    captured = capture_forward(branches, torch.ones(4))
    problem = problem_of(captured, machine)
    with pytest.raises(error):
        PolicyEngine(captured, Careless(problem, launches), executors=executors).run(captured.bind())
    engine = PolicyEngine(captured, create("fifo", problem), executors=executors)
    assert torch.equal(engine.run(captured.bind()), captured.run())


def test_a_policy_of_another_graph_is_refused(step: Captured, machine: Machine, executors: Executors) -> None:
    captured = capture_forward(branches, torch.ones(4))
    with pytest.raises(PlanError, match="not of this graph"):
        PolicyEngine(captured, create("fifo", problem_of(step, machine)), executors=executors)
