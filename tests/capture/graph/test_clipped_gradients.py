"""A captured step clips gradients as `torch.nn.utils.clip_grad_norm_` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from tests.capture.eager_training import train
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
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.frozen.grad = torch.ones(2)  # does not count

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


class Scaled(Net):
    """Of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.last.double()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last((self.first(x) * self.scale).tanh().double())
        return result


NOT_FINITE = torch.cat([torch.full((1, 3), float("inf")), X[1:]])


@pytest.mark.parametrize(
    ("net", "make", "most_norm", "x"),
    [
        *((Net, make, most_norm, X) for make in (sgd, adamw) for most_norm in (0.3, float("inf"))),
        (Scaled, sgd, 0.1, X), (Net, sgd, 1.0, NOT_FINITE),
    ],
)  # fmt: skip
def test_parameters_and_state_are_as_in_eager_pytorch(net: type[Net], make: Made, most_norm: float, x: Tensor) -> None:
    mine, theirs = net(), net()
    optimizers = make(mine.parameters()), make(theirs.parameters())
    step = captured(mine, optimizers[0], most_norm)
    norms = []
    for _ in range(12):
        step.run(x, Y)
        norms.append(train(theirs, optimizers[1], lambda model: cross_entropy(model(x), Y), most_norm=most_norm)[1])
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), equal_nan=True)
    states = [one.state_dict()["state"] for one in optimizers]
    torch.testing.assert_close(*states, equal_nan=True)
    if most_norm == 0.3 and make is sgd and net is Net:
        assert min(norms) < most_norm < max(norms), "gradients are clipped in some steps only"


def test_a_norm_that_may_count_more_than_the_optimizers_gradients_is_refused() -> None:
    """Also of frozen parameters, which another optimizer may have trained before."""
    model = Net()
    trained = sgd(one for one in model.parameters() if one.requires_grad)
    captured(model, trained, None)
    with pytest.raises(OptimizerRefused, match="which the norm counts"):
        captured(model, trained, 1.0)
