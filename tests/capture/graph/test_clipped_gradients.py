"""A captured step clips gradients as `torch.nn.utils.clip_grad_norm_` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from threadcast.capture.graph.capture import capture_step
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.optimizers import OptimizerRefused

Made = Callable[[Iterable[nn.Parameter]], Optimizer]

X, Y = torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 1, 0])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.unused = nn.Linear(3, 5), nn.Linear(5, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.first(x).tanh())
        return result


def captured(model: nn.Module, optimizer: Optimizer, most_norm: float | None) -> Captured:
    def objective(model: nn.Module, x: Tensor, y: Tensor) -> tuple[dict[str, Any], Tensor]:
        loss = cross_entropy(model(x), y)
        return {"loss": loss}, loss

    return capture_step(model, objective, optimizer, (X, Y), most_norm=most_norm)


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.5, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(parameters, lr=0.05)


@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("most_norm", [0.01, 0.3, 100.0, float("inf")])
def test_parameters_and_state_are_as_in_eager_pytorch(make: Made, most_norm: float) -> None:
    mine, theirs = Net(), Net()
    optimizers = make(mine.parameters()), make(theirs.parameters())
    step = captured(mine, optimizers[0], most_norm)
    norms = []
    for _ in range(20):
        step.run(X, Y)
        optimizers[1].zero_grad()
        torch.autograd.backward(cross_entropy(theirs(X), Y))
        norms.append(float(nn.utils.clip_grad_norm_(theirs.parameters(), most_norm)))
        optimizers[1].step()
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
    torch.testing.assert_close(optimizers[0].state_dict()["state"], optimizers[1].state_dict()["state"])
    if most_norm == 0.3 and make is sgd:
        assert min(norms) < most_norm < max(norms), "gradients are clipped in some steps only"


def test_gradients_that_are_not_finite_have_the_effect_that_they_have_in_eager_pytorch() -> None:
    mine, theirs = Net(), Net()
    optimizers = sgd(mine.parameters()), sgd(theirs.parameters())
    step = captured(mine, optimizers[0], 1.0)
    x = X.clone()
    x[0, 0] = float("inf")
    step.run(x, Y)
    torch.autograd.backward(cross_entropy(theirs(x), Y))
    nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    optimizers[1].step()
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), equal_nan=True)


def test_a_norm_that_may_count_more_than_the_optimizers_gradients_is_refused() -> None:
    """Also of frozen parameters, which another optimizer may have trained before."""
    model = Net()
    model.unused.requires_grad_(False)
    trained = sgd(one for one in model.parameters() if one.requires_grad)
    captured(model, trained, None)
    with pytest.raises(OptimizerRefused, match="which the norm counts"):
        captured(model, trained, 1.0)


def test_frozen_parameters_of_the_optimizer_do_not_count() -> None:
    mine, theirs = Net(), Net()
    optimizers = sgd(mine.parameters()), sgd(theirs.parameters())
    for model in (mine, theirs):
        model.unused.requires_grad_(False)
        model.unused.weight.grad = torch.ones(2, 2)
    captured(mine, optimizers[0], 0.3).run(X, Y)
    optimizers[1].zero_grad()
    torch.autograd.backward(cross_entropy(theirs(X), Y))
    nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
    optimizers[1].step()
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())


def test_gradients_of_mixed_types_keep_theirs() -> None:
    class Scaled(Net):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.last.double()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last((self.first(x) * self.scale).tanh().double())
            return result

    mine, theirs = Scaled(), Scaled()
    optimizers = sgd(mine.parameters()), sgd(theirs.parameters())
    step = captured(mine, optimizers[0], 0.1)
    for _ in range(5):
        step.run(X, Y)
        optimizers[1].zero_grad()
        torch.autograd.backward(cross_entropy(theirs(X), Y))
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        optimizers[1].step()
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
