"""A model of a judge (`judge.py`) with its inputs, and how its calls and training steps are run and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

LEARNING_RATE = 1e-3
TOLERANCE = 1e-3
"""Largest difference from eager PyTorch, as a share of a result's largest number, that does not count as wrong in the
quick check. Random weights have no sharper scale; the long run has GraphNet's tolerances."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A model that nobody here wrote, with random weights and example inputs."""

    name: str
    model: nn.Module
    inputs: tuple[Any, ...]
    named: dict[str, Any]

    def target(self) -> Tensor:
        """What a training step is trained towards, from the shape of the model's first result."""
        with torch.no_grad():
            scores = first_tensor(self.model.eval()(*self.inputs, **self.named))
        generator = torch.Generator().manual_seed(1)
        if scores.dim() in (2, 3) and scores.shape[-1] > 1:
            return torch.randint(scores.shape[-1], scores.shape[:-1], generator=generator)
        return torch.randn(scores.shape, generator=generator)

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of training steps: SGD with momentum."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return torch.optim.SGD(trained, lr=LEARNING_RATE, momentum=0.9)


class Named(nn.Module):
    """A model with named inputs that stay the same."""

    def __init__(self, model: nn.Module, named: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.named = model, named

    def forward(self, *inputs: Any) -> Any:
        return self.model(*inputs, **self.named)


def first_tensor(result: Any) -> Tensor:
    """The first floating-point tensor of a model's result."""
    return next(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point())


def loss(result: Any, target: Tensor) -> Tensor:
    """Cross entropy of classes, or the mean squared difference from numbers, of the first tensor of `result`."""
    scores = first_tensor(result)
    if target.is_floating_point():
        return F.mse_loss(scores, target)
    return F.cross_entropy(scores.flatten(0, -2), target.flatten())


def eager_training(
    case: Judged, run: Callable[..., Any], target: Tensor, optimizer: torch.optim.Optimizer
) -> Callable[[], Tensor]:
    """A training step as people write it, of `run`, which is the model or was made from it."""

    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss(run(*case.inputs, **case.named), target)
        torch.autograd.backward(value)
        optimizer.step()
        return value.detach()

    return step


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors of a result, flat."""
    return [leaf.detach() for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Largest difference of any pair, as a share of the wanted tensor's largest number; inf where they do not fit."""
    if [(one.shape, one.dtype) for one in found] != [(one.shape, one.dtype) for one in wanted]:
        return math.inf
    return max((_difference(one, other) for one, other in zip(found, wanted, strict=True)), default=0.0)


def _difference(one: Tensor, other: Tensor) -> float:
    if one.numel() == 0 or one.equal(other):
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    finite = other.isfinite()
    if not torch.equal(finite, one.isfinite()) or not torch.equal(one.isnan(), other.isnan()):
        return math.inf
    if not finite.any():
        return 0.0
    one, other = one[finite], other[finite]
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))
