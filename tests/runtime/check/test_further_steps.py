"""Further steps that show whether a difference is chance: they leave all as PyTorch alone leaves it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from threadcast.runtime.check.shadow import Checked, Shadowed, checked_step, leaves

Optimizers = dict[str, Callable[[Any], Optimizer]]
OPTIMIZERS: Optimizers = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}
"""The state of both appears in the first step."""


class _Training:
    """A small network with running statistics and random numbers, of which a plan's gradients may be wrong."""

    def __init__(self, optimizer: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 36, 4)
        )
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.x, self.y = torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,))
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(5)

    def step(self, x: Tensor, y: Tensor, *, wrong: bool = False) -> Tensor:
        self.optimizer.zero_grad()
        noise = random.random() + float(np.random.rand())
        loss = nn.functional.cross_entropy(self.model(x), y) * (1 + noise)
        loss.backward()
        if wrong:
            gradient = self.model[5].weight.grad
            gradient[0, 0] += 0.05 * gradient.abs().max()
        self.optimizer.step()
        return loss.detach()

    def values(self) -> list[Any]:
        """All that a step changes."""
        state = [value for entries in self.optimizer.state.values() for value in entries.values()]
        gradients = [parameter.grad for parameter in self.model.parameters()]
        generators = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()]
        return [*self.model.state_dict().values(), *state, *gradients, self.x, self.y, *generators]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("wrong", "raising", "refused", "runs"),
    [
        (range(2), None, False, 2 + 2 * 2),
        (range(8), None, False, 2 + 5 * 2),
        (range(99), None, True, 2 + 8 * 2),
        (range(3), None, True, 2 + 2),
        ((0, 1, 3), None, True, 2 + 2),
        (range(2), 2, True, 3),
        (range(2), 3, True, 4),
    ],
    ids=["in this step", "in four steps", "always", "a race", "another race", "raises", "raises when it is repeated"],
)
def test_further_steps_leave_all_as_pytorch_alone_does(
    optimizer: str, wrong: Any, raising: int | None, refused: bool, runs: int
) -> None:
    alone, training, ran = _Training(optimizer), None, []
    result = alone.step(alone.x, alone.y)
    wanted = [value.clone() if isinstance(value, Tensor) else value for value in alone.values()]
    training = _Training(optimizer)

    def plan(x: Tensor, y: Tensor) -> Tensor:
        ran.append(x)
        if len(ran) - 1 == raising:
            raise RuntimeError("a plan that cannot go on")
        return training.step(x, y, wrong=len(ran) - 1 in wrong)

    shadowed = Shadowed(training.step, training.step, training.model, training.optimizer, leaves)
    checked: Checked = checked_step(shadowed, plan, (training.x, training.y), None, jumps=True)
    assert (checked.difference is not None, len(ran)) == (refused, runs)
    assert torch.equal(checked.result, result)
    assert len(training.values()) == len(wanted)
    for value, other in zip(training.values(), wanted, strict=True):
        assert torch.equal(value, other) if isinstance(other, Tensor) else value == other
