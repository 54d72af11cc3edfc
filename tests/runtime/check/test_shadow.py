"""Verified steps: right plans pass and leave no trace, wrong ones are stopped with the operator at fault named."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.core.errors import WrongResult
from threadcast.runtime.check.shadow import Ran, Shadowed, checked_step, leaves, verified_step
from threadcast.runtime.engine.engine import Engine


class Net(nn.Module):
    """Two branches, a random one, running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm = nn.Linear(8, 16), nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        left = nn.functional.dropout(self.left(x).relu(), 0.3)
        result: Tensor = self.out(self.norm(left + self.right(x).tanh()))
        return result


class Step:
    """A training step of a small network with a plan, and what shadows need to know of it."""

    def __init__(self, machine: Machine) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.arguments = torch.randn(6, 8), torch.randn(6, 4)
        x, y = self.arguments
        self.captured: Captured = capture_training(self.model, mse_loss, self.optimizer, (x,), y)
        self.plan = make_random_plan(self.captured.graph, tuple(core.id for core in machine.cores), seed=3)
        self.make_engine = partial(Engine, plan=self.plan, machine=machine)
        self.engine = self.make_engine(self.captured)
        self.shadowed = Shadowed(self.eager, self.trace, self.model, self.optimizer, lambda loss: {"loss": loss})

    def by_plan(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.engine.run(self.captured.bind((x,), y))["loss"]
        return loss

    def eager(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(x), y)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def trace(self, x: Tensor, y: Tensor) -> None:
        torch.autograd.grad(mse_loss(self.model(x), y), list(self.model.parameters()))

    def shadow(self) -> Tensor:
        # the engine binds nested arguments, the caller's are flat
        captured, nested = self.captured, ((self.arguments[0],), self.arguments[1])
        shadowed = Shadowed(
            lambda inputs, y: self.eager(*inputs, y), lambda inputs, y: self.trace(*inputs, y), self.model,
            self.optimizer, lambda loss: {"loss": loss["loss"] if isinstance(loss, dict) else loss},
        )  # fmt: skip
        loss: Tensor = verified_step(
            shadowed, lambda inputs, y: self.by_plan(*inputs, y), nested, captured,
            lambda: Ran(captured, self.plan, self.make_engine),
        )  # fmt: skip
        return loss

    def everything(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                "attributes": len(vars(self.optimizer)), "generator": torch.get_rng_state(),
                "gradients": [parameter.grad for parameter in self.model.parameters()],
            }
        )  # fmt: skip


@needs_compiler
def test_a_verified_step_leaves_everything_as_eager_pytorch_does(machine: Machine) -> None:
    plain, shadowed = Step(machine), Step(machine)
    for step, run in ((plain, lambda: plain.eager(*plain.arguments)), (shadowed, shadowed.shadow)):
        torch.manual_seed(5)
        losses = [run() for _ in range(3)]
        step.left = losses, step.everything()  # type: ignore[attr-defined]
        step.engine.close()
    torch.testing.assert_close(shadowed.left, plain.left, rtol=0, atol=0)  # type: ignore[attr-defined]


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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

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
