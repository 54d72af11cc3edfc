"""A training loop, run twice: by `optimize_training`, and by the same steps written out in eager PyTorch."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import threadcast
from threadcast.runtime.doors.optimized_step import OptimizedStep

STEPS = 8
"""Steps between two things that a loop does: enough to measure, plan and run by the plan."""


class Net(nn.Module):
    """Two linear layers with batch norm between them, and a public number.

    The first has no bias: its gradient would be nothing but rounding, of which some optimizers make whole steps.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.last = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.factor = 1.0
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.norm(self.first(x)).tanh() * self.factor)
        return result


def batch(seed: int, size: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and classes for `Net`."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=drawn, dtype=torch.float64), torch.randint(3, (size,), generator=drawn)


def sgd(model: nn.Module, **settings: Any) -> Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **settings)


class EagerStep:
    """What `optimize_training` returns, as a user would write it."""

    def __init__(
        self, model: nn.Module, loss: Callable[[Any, Any], Tensor] | None, optimizer: Optimizer, *,
        clip_grad_norm: float | None = None, accumulate: int = 1, keep_grads: bool = False, scaler: Any = None,
    ) -> None:  # fmt: skip
        self.model, self.loss, self.optimizer, self.scaler = model, loss, optimizer, scaler
        self.clip, self.accumulate, self.keep_grads, self.batches = clip_grad_norm, accumulate, keep_grads, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.batches % self.accumulate == 0:
            self.optimizer.zero_grad()
        if self.loss is None:
            found = self.model(*args, **kwargs)
            value: Tensor = found["loss"] if isinstance(found, Mapping) else found
        else:
            value = self.loss(self.model(*args[:-1], **kwargs), args[-1])
        part = value / self.accumulate
        torch.autograd.backward(part if self.scaler is None else self.scaler.scale(part))
        self.batches += 1
        if self.batches % self.accumulate == 0:
            self.update()
        return value.detach()

    def close(self) -> None:
        """Nothing to end."""

    def update(self) -> None:
        """Update from the gradients that there are."""
        self.batches = 0
        if self.clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if not self.keep_grads:
            self.optimizer.zero_grad()


Make = Callable[..., Any]
"""Returns a step: `optimize_training`, or `EagerStep`."""


class WatchedStep:
    """An optimised step, and how many of its calls in a row have run by a plan up to now, if only to measure it."""

    def __init__(self, step: OptimizedStep) -> None:
        self.step, self.planned = step, 0
        self.update = step.update

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = self.step(*args, **kwargs)
        by_plan = getattr(self.step._optimized._last, "ran", None) is not None
        self.planned = self.planned + 1 if by_plan else 0
        return loss


class Steps:
    """Makes optimised steps, and knows them afterwards."""

    def __init__(self, end: ExitStack) -> None:
        self._end = end
        self.made: list[WatchedStep] = []

    def __call__(self, *arguments: Any, **options: Any) -> WatchedStep:
        step = WatchedStep(self._end.enter_context(closing(threadcast.optimize_training(*arguments, **options))))
        self.made.append(step)
        return step


def trains_as_eager(loop: Callable[[Make], Any], *, refused: str | None = None, within: float = 1e-8) -> None:
    """Run `loop` both ways, and compare the tensors that it returns up to `within` of their numbers, or of 1.

    `refused` matches the warning where PyTorch runs the steps; otherwise the last call of each step ran by a plan.
    A `loop` takes what makes steps. It returns tensors, modules and optimizers, nested.
    """
    seed()
    wanted = list(tensors(loop(EagerStep)))
    seed()
    with ExitStack() as end, warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = Steps(end)
        said = pytest.warns(UserWarning, match=refused) if refused is not None else contextlib.nullcontext()
        with said:
            found = list(tensors(loop(steps)))
        if refused is None:
            assert all(step.planned for step in steps.made), [step.step for step in steps.made]
    assert len(found) == len(wanted)
    for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(
            mine, theirs, rtol=within, atol=within, equal_nan=True, msg=lambda text, n=number: f"tensor {n}: {text}"
        )


def seed() -> None:
    torch.manual_seed(1)
    random.seed(1)


def tensors(value: Any) -> Iterator[Tensor]:
    """Copies of all tensors of modules, optimizers and nested values, in order."""
    if isinstance(value, Tensor):
        yield value.detach().clone()
    elif isinstance(value, float):
        yield torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, nn.Module | Optimizer):
        yield from tensors(value.state_dict())
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield from tensors(value[name])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
