"""Pairs of optimizers, of which one may use PyTorch's fused kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from threadcast.runtime.updates.fused_updates import FusedUpdates

Made = Callable[..., Optimizer]


def some_parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3,), (33,), (5, 13), (), (300, 40))
    made = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    images = torch.randn(2, 3, 4, 5, generator=generator).contiguous(memory_format=torch.channels_last)
    return [*made, nn.Parameter(images)]


def some_gradients(parameters: list[nn.Parameter], step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.empty_like(one).copy_(torch.randn(one.shape, generator=generator)) for one in parameters]


class Pair:
    """Two equal optimizers: `mine`, whose parameters are adopted, and `theirs`."""

    def __init__(self, updates: FusedUpdates, make: Made, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.others = parameters, copy.deepcopy(parameters)
        self.mine, self.theirs = make(self.parameters), make(self.others)
        updates.adopt(self.parameters)
        self.fused: list[bool] = []
        """Of each step of `mine` whether it was fused."""
        self.made = 0

    def steps(self, number: int, *, gradients: Callable[[list[nn.Parameter], int], list[Any]] = some_gradients) -> None:
        """Make steps of both."""
        for _ in range(number):
            self.made += 1
            for parameters in (self.parameters, self.others):
                for one, gradient in zip(parameters, gradients(parameters, self.made), strict=True):
                    one.grad = gradient
            looks = self.mine.register_step_pre_hook(Look(self.fused))
            self.mine.step()
            looks.remove()
            self.theirs.step()

    def agree(self) -> bool:
        """Whether both have the same numbers, but for rounding: a step changes numbers by 1e-3 and more."""
        torch.testing.assert_close(self.parameters, self.others, rtol=1e-5, atol=1e-6)
        mine, theirs = self.mine.state_dict()["state"], self.theirs.state_dict()["state"]
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        return True


class Look:
    """Notes of each step whether it is fused, and that it has no more threads than the process."""

    only_counts = True

    def __init__(self, found: list[bool]) -> None:
        self._found, self._most = found, torch.get_num_threads()

    def __call__(self, optimizer: Optimizer, *_: object) -> None:
        assert torch.get_num_threads() <= self._most
        self._found.append(bool(optimizer.param_groups[0]["fused"]))


OPTIMIZERS: list[Made] = [
    lambda given: SGD(given, lr=0.01),
    lambda given: SGD(given, lr=0.01, momentum=0.9),
    lambda given: SGD(given, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda given: SGD(given, lr=0.01, momentum=0.9, maximize=True),
    lambda given: Adam(given, lr=0.01),
    lambda given: Adam(given, lr=0.01, amsgrad=True, weight_decay=0.1),
    lambda given: AdamW(given, lr=0.01, betas=(0.8, 0.95)),
    lambda given: AdamW([{"params": given[:2], "weight_decay": 0.0}, {"params": given[2:]}], lr=0.01),
]


class Fails(Look):
    """Breaks a step off, as a signal's handler may."""

    def __call__(self, optimizer: Optimizer, *_: object) -> None:
        super().__call__(optimizer)
        raise KeyboardInterrupt
