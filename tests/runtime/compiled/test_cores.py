"""Graphs run by plans that divide them among cores, which go and come back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.compiled.running import perceptron, rows, runners
from tests.runtime.random_plans import make_random_plan
from threadcast.core import OpGraph, read_machine
from threadcast.runtime.plans.plan_store import PlanStore, StoredPlan
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.threads.this_process import this_process

CORES = read_machine().cores
pytestmark = [
    pytest.mark.usefixtures("one_thread", "divided"),
    pytest.mark.skipif(len(CORES) < 2, reason="one core has nothing to divide"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph has a stored plan, drawn at random, with its operators on all cores."""
    cores = tuple(core.id for core in CORES)

    def stored(_: PlanStore, graph: OpGraph) -> StoredPlan:
        return StoredPlan(make_random_plan(graph, cores, seed=1, max_width=1), MemoryFormat.AS_GIVEN, 1e9)

    monkeypatch.setattr(PlanStore, "read", stored)


@pytest.fixture
def cores_come_back() -> Iterator[None]:
    yield
    this_process().cores.assign(os.sched_getaffinity(0))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_sums_of_products_are_eagers_also_in_inference_mode(mode: Any) -> None:
    def products(x: Tensor, *weights: Tensor) -> Tensor:
        total = x @ weights[0]
        for weight in weights[1:]:
            total = total + x @ weight
        return total.tanh()

    compiled = torch.compile(products, backend="threadcast")
    torch.manual_seed(0)
    with mode():
        weights = [torch.randn(8, 8, dtype=torch.float64) for _ in range(6)]
        for number in range(20):
            x = rows(number)
            torch.testing.assert_close(compiled(x, *weights), products(x, *weights), rtol=1e-9, atol=1e-12)
    assert runners() == {"inference": ["plan"]}


def test_cores_that_go_and_come_back_change_no_result(cores_come_back: None) -> None:
    mine, eager = perceptron(), perceptron()
    compiled = torch.compile(mine, backend="threadcast")
    first = CORES[0].cpus[:1]
    for number in range(40):
        if number % 10 == 5:
            this_process().cores.assign(first)
        if number % 10 == 0:
            this_process().cores.assign(os.sched_getaffinity(0))
        for called, model in ((compiled, mine), (eager, eager)):
            model.zero_grad()
            called(rows(number)).square().sum().backward()
        for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert runners() == {"forward": ["plan"], "backward": ["plan"]}
