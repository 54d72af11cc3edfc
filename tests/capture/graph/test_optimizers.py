"""A captured step updates parameters as the optimizer does, however gradients and state lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.capture.eager_training import train
from threadcast.capture.graph.capture import capture_training

Made = Callable[..., torch.optim.Optimizer]


class InChannelsLast(nn.Module):
    """Converts the input, which makes gradients of convolutions channels_last too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x.contiguous(memory_format=torch.channels_last))
        return result


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(4 * 8 * 8, 5))


X, Y = torch.linspace(-1, 1, 2 * 3 * 12 * 12).reshape(2, 3, 12, 12), torch.tensor([1, 3])


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, eps=1e-4)


def train_eagerly(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        train(model, optimizer, lambda model: cross_entropy(model(X), Y))


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("wrap", [nn.Sequential, InChannelsLast])
@pytest.mark.parametrize("make", [sgd, adam])
def test_every_layout_of_parameters_and_gradients_is_updated_alike(
    make: Made, wrap: type[nn.Module], converted: bool
) -> None:
    expected, model = network(), network()
    train_eagerly(expected, make(expected.parameters()), 4)
    optimizer = make(model.parameters())
    train_eagerly(model, optimizer, 2)
    if converted:  # its state too
        model.to(memory_format=torch.channels_last)
    captured = capture_training(wrap(model), cross_entropy, optimizer, (X,), Y)
    for _ in range(2):
        captured.run()
    for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
