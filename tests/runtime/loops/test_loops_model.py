"""What loops do to the model between steps: each is as in eager PyTorch, or PyTorch runs it and a warning says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.runtime.loops.reference import STEPS, Make, Net, batch, sgd, trains_as_eager

pytestmark = pytest.mark.usefixtures("one_thread", "plans_win")


def train(step: Any, first: int = 0, steps: int = STEPS) -> list[Tensor]:
    return [step(*batch(seed)) for seed in range(first, first + steps)]


def test_exchanging_a_parameter_that_the_optimizer_does_not_know() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        train(step)
        model.last.bias = nn.Parameter(torch.ones(3, dtype=torch.float64))
        return train(step, STEPS), model, model.last.bias.grad

    trains_as_eager(loop)


def test_an_attribute_that_changes_in_every_step_is_refused_aloud() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        for seed in range(4 * STEPS):
            model.factor = 1 - 0.01 * seed
            step(*batch(seed))
        return model

    trains_as_eager(loop, refused="factor")


class Scaled(Net):
    """Its scale is a buffer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(3, dtype=torch.float64, requires_grad=True))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 10.0}], ids=str)
def test_a_buffer_that_is_trained_is_refused_aloud(options: dict[str, Any]) -> None:
    def loop(make: Make) -> Any:
        model = Scaled()
        optimizer = torch.optim.SGD([*model.parameters(), model.scale], lr=0.05, momentum=0.9)
        return train(make(model, cross_entropy, optimizer, **options), steps=2 * STEPS), model, optimizer

    trains_as_eager(loop, refused="a buffer requires a gradient")
