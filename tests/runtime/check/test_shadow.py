"""Verified steps leave everything as eager PyTorch does, whatever the plan gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from threadcast.capture.graph.capture import capture_forward
from threadcast.core.errors import WrongResult
from threadcast.runtime.check.shadow import Shadowed, checked_step, leaves, verified_step


class Drawn(nn.Module):
    """A network whose input must be a probability."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.register_buffer("unchanged", torch.tensor([0.0, -0.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.norm(torch.bernoulli(x)))
        return result


def _drawn() -> tuple[Drawn, Shadowed]:
    model = Drawn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def eager(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    return model, Shadowed(eager, eager, model, optimizer, lambda loss: {"loss": loss})


def test_changed_numbers_that_an_operator_refuses_do_not_reach_the_caller() -> None:
    (model, shadowed), (alone, eager) = _drawn(), _drawn()
    alone.load_state_dict(model.state_dict())
    arguments = torch.ones(6, 8), torch.randn(6, 4)
    result, difference, *_ = checked_step(shadowed, lambda *a: shadowed.eager(*a) * 2, arguments, None)
    assert difference is not None
    assert torch.equal(result, eager.eager(*arguments))
    torch.testing.assert_close(model.state_dict(), alone.state_dict(), rtol=0, atol=0)
    assert shadowed.optimizer is not None
    assert eager.optimizer is not None
    states = [one.state_dict()["state"] for one in (shadowed.optimizer, eager.optimizer)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_values_that_a_checked_step_leaves_alone_are_not_written() -> None:
    model, shadowed = _drawn()
    arguments = torch.rand(6, 8), torch.randn(6, 4)
    versions = [tensor._version for tensor in (model.unchanged, *arguments)]
    assert checked_step(shadowed, shadowed.eager, arguments, None)[1] is None
    assert [tensor._version for tensor in (model.unchanged, *arguments)] == versions


@pytest.mark.parametrize("number", [1.0, torch.nan])
def test_arguments_that_a_graph_only_reads_are_never_written(number: float) -> None:
    """They may be in memory that can only be read, or saved for a backward pass of the caller's own."""
    x = torch.randn(5, 4)
    x[0, 0] = number

    def function(x: Tensor) -> Tensor:
        return (x @ x.T).sin()

    captured = capture_forward(function, x.clone())
    shadowed = Shadowed(function, function, None, None, leaves)
    version = x._version
    for factor in (1.0, 1.0001, 2.0):
        checked_step(shadowed, lambda x, factor=factor: function(x) * factor, (x,), captured)
    assert x._version == version


def test_steps_that_are_run_again_leave_the_random_generator_as_one_step_does() -> None:
    _, plain = _drawn()

    def eager(x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = plain.eager(x, y) + torch.rand(())
        return loss

    shadowed = dataclasses.replace(plain, eager=eager)

    def after(step: Callable[..., Any]) -> list[int]:
        torch.manual_seed(1)
        step()
        found: list[int] = torch.get_rng_state().tolist()
        return found

    arguments = torch.rand(6, 8), torch.randn(6, 4)
    wanted = after(lambda: eager(*arguments))
    assert after(lambda: checked_step(shadowed, eager, arguments, None)) == wanted
    assert after(lambda: checked_step(shadowed, lambda *a: plain.eager(*a) * 2, arguments, None)) == wanted
    assert after(lambda: verified_step(shadowed, eager, arguments, None, lambda: None)) == wanted
    with pytest.raises(WrongResult):
        verified_step(shadowed, plain.eager, arguments, None, lambda: None)


def test_a_tensor_that_is_written_by_way_of_a_view_is_set_back() -> None:
    counts = torch.zeros(3)

    def function(x: Tensor) -> Tensor:
        counts[0].add_(1)
        return x * counts[0]

    x = torch.randn(3)
    captured, shadowed = capture_forward(function, x), Shadowed(function, function, None, None, leaves)
    for number in (1, 2):
        result, difference, *_ = checked_step(shadowed, captured.run, (x,), captured)
        assert difference is None
        assert torch.equal(result, x * number)
        assert counts.tolist() == [number, 0, 0]


def test_a_step_by_pytorch_itself_is_not_verified() -> None:
    """Its kernels need not repeat their bits: a sum that cancels may be 1e-18 once, and -1e-18 the next time."""
    results = iter([torch.tensor([1e-18]), torch.tensor([-1e-18])])
    step = Shadowed(
        lambda: next(results), lambda: next(results), torch.nn.Linear(1, 1), None, lambda result: {"r": result}
    )
    assert verified_step(step, step.eager, (), None, lambda: None, by_pytorch=lambda: True) == 1e-18
