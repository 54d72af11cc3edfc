"""`torch.compile(model, backend="threadcast")` in an ordinary training loop: gradients and updates are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.runtime.compiled.running import run_until_settled, runners
from tests.runtime.small_training import batch, net, same_state, train_eagerly

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, dampening=0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
}


def layered() -> nn.Module:
    """A network without gradients that are zero but for rounding, which Adagrad and its kind would make large."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, 4)
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_by_plans_is_eager_training_with_any_optimizer(name: str) -> None:
    mine, eager = layered(), layered()
    my_optimizer, eager_optimizer = OPTIMIZERS[name](mine.parameters()), OPTIMIZERS[name](eager.parameters())
    compiled = torch.compile(mine, backend="threadcast")

    def train(seed: int) -> None:
        x, y = batch(seed)
        found, wanted = train_eagerly(compiled, my_optimizer, x, y), train_eagerly(eager, eager_optimizer, x, y)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)
        for parameter, other in zip(mine.parameters(), eager.parameters()):
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-7, atol=1e-9)

    run_until_settled(train)
    assert runners() == {"forward": ["plan"], "backward": ["plan"]}
    same_state(mine, eager)


def test_a_loss_in_the_compiled_function_is_trained_too() -> None:
    mine, eager = net(), net()
    step = torch.compile(lambda x, y: cross_entropy(mine(x), y), backend="threadcast")

    def train(seed: int) -> None:
        x, y = batch(seed)
        for loss, model in ((step(x, y), mine), (cross_entropy(eager(x), y), eager)):
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.05 * parameter.grad
                    parameter.grad = None

    run_until_settled(train)
    assert runners() == {"forward": ["plan"], "backward": ["plan"]}
    same_state(mine, eager)
