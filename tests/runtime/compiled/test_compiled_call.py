"""Programs of `torch.compile` run as traced, by their graphs, or by both in turns, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.runtime.conftest import DefaultWins
from tests.waiting import attempts
from threadcast.runtime.compiled import whole_calls
from threadcast.runtime.compiled.compiled_call import _SELDOM
from threadcast.runtime.doors.compile_backend import backend, compiled_calls, compiled_graphs
from threadcast.runtime.plans.plan_store import FasterGraphs

pytestmark = pytest.mark.compared


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_program_that_is_compiled_once_more_runs_as_was_found_before(dynamic: bool) -> None:
    """Where its sizes vary, those of the first call need only be about the same."""
    for number in range(3):
        torch._dynamo.reset()
        model = torch.compile(nn.Linear(3, 3 if number < 2 else 4), backend="threadcast", dynamic=dynamic)
        model(torch.ones(8 + number * dynamic, 3))
        call = max(compiled_calls(), key=lambda one: one.parts[0].number)
        assert call.by_graphs == (number == 1), "another program, and one that was not seen yet"
        call._whole._keep(FasterGraphs(1.0, 2.0))


def test_a_program_whose_graphs_were_not_faster_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    for share, calls in ("0.05", 1), ("0.05", 1), ("1", 2):
        monkeypatch.setenv("THREADCAST_ENGINE_TUNING_SHARE", share)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(model, backend="threadcast")(x), model(x))
        assert len(compiled_calls()) == calls
        if share == "0.05":
            compiled_calls()[0]._whole._keep(None)


@pytest.mark.usefixtures("plans_win")
def test_a_program_that_is_left_to_pytorch_runs_under_pytorchs_own_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators of AOTAutograd's graphs take up to 1.2 of its time."""
    monkeypatch.setattr(whole_calls, "Tournament", DefaultWins)
    layer = torch.nn.Linear(8, 8)
    compiled, x = torch.compile(layer, backend="threadcast"), torch.randn(4, 8)

    def by_graphs() -> bool:
        found = compiled(x)
        found.sum().backward()
        return "Compiled" in found.grad_fn.name()

    assert not by_graphs(), "nothing is learned before it is known how long it takes as it was"
    run: list[bool] = []
    for _ in attempts():
        run.append(by_graphs())
        if any(graph.reports and graph.reports[0].reason for graph in compiled_graphs()):
            break
    assert any(run), "the graphs have learned"
    assert not any(by_graphs() for _ in range(30))
    assert {graph.reports[0].state[:22] for graph in compiled_graphs()} == {"default, whole calls a"}


def test_a_program_that_is_called_within_a_checkpoint_once_its_graphs_run_saves_the_same_both_times() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh())
    x = torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(model, backend=backend)
    before = set(compiled_calls())

    def gradient(call: Callable[..., Any]) -> Tensor:
        (found,) = torch.autograd.grad(call(x).square().sum(), x)
        return found

    wanted = gradient(model)
    torch.testing.assert_close(gradient(compiled), wanted)
    (call,) = set(compiled_calls()) - before
    call._runs = call._graphs
    for _ in range(2 * _SELDOM + 2):
        found = gradient(lambda x: checkpoint(compiled, x, use_reentrant=False))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_written_input_that_shares_memory_with_another_is_written_as_in_eager(gradients: bool) -> None:
    """AOTAutograd takes both for apart, as they were in the first call, and has no guard."""
    layer = nn.Linear(8, 8)

    def program(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        found: Tensor = layer(x) + y
        return found

    compiled = torch.compile(program, backend=backend)
    for number in range(2 * _SELDOM):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(number))
        results = []
        for call in (program, compiled):
            given = x.clone()
            with torch.set_grad_enabled(gradients):
                results.append((call(given, given.view_as(given) if number % 2 else x.clone()), given))
        torch.testing.assert_close(*results)
