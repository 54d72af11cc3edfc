"""A model of a judge (`judge.py`) with its inputs, and how its calls and training steps are run and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from threadcast.runtime.check.limits import largest_of_groups
from threadcast.threads.openmp import torch_threads

LEARNING_RATE = 1e-3
TOLERANCE = 1e-3
"""Largest difference from eager PyTorch, as a share of a result's largest number, that never counts as wrong. Random
weights have no sharper scale. The long run has GraphNet's tolerances besides."""
SENSITIVITY = 20
"""How many times as far from eager a right result may be as eager is from itself with another number of threads, or in
training from weights that differ by `ROUNDING`."""
ROUNDING = 1e-7
"""Relative difference of two float32 numbers beside each other."""
ROUNDED = 12
"""Trainings from weights that differ by `ROUNDING`: whether the sign of a number near 0 changes is by chance. Of
LR-ASPP three of them showed such a sign in one of three runs, so that a right result counted as wrong in the others."""
_STEADY = 0.5 / SENSITIVITY
"""How far a steady value of eager's is from itself at most: what was never updated, which is off by 1, stays wrong."""
_ROUNDINGS = 2
"""Roundings of a number, or of a mean's standard deviation, that do not count as movement: each of a few updates is
rounded, in both trainings."""

Value = tuple[Tensor, Tensor | None, Tensor | None]
"""A value; for one that training moves what it was before; for a running mean the standard deviations beside it."""


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
    """The tensors and numbers of a result, flat. TypeError for leaves of which it is not known how they compare."""
    found = []
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, Tensor):
            found.append(leaf.detach())
        elif isinstance(leaf, bool | int | float | complex):
            found.append(torch.tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None))
        elif leaf is not None and not isinstance(leaf, str):
            raise TypeError(f"a result has a {type(leaf).__name__}, which cannot be compared")
    return found


def results_of(result: Any) -> list[Value]:
    """Copies of the tensors of a result, which nothing was there before."""
    return [(tensor.clone(), None, None) for tensor in tensors_of(result)]


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's parameters and buffers, by name."""
    return {name: value.detach().clone() for name, value in _state(model)}


def other_threads() -> AbstractContextManager[None]:
    """Within the context PyTorch runs operators with one thread where it had several, and with two where it had one."""
    return torch_threads(2 if torch.get_num_threads() == 1 else 1)


def _scales_of_means(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """For each running mean the standard deviations beside it: in half precision, as many of their roundings in single
    precision, in which means are summed up."""
    found, mean_of, variance_of = {}, "running_mean", "running_var"
    for name, mean in values.items():
        variance = values.get(name.removesuffix(mean_of) + variance_of) if name.endswith(mean_of) else None
        if variance is not None and mean.is_floating_point() and mean.dtype == variance.dtype:
            single = min(1.0, torch.finfo(torch.float32).eps / torch.finfo(mean.dtype).eps)
            found[name] = variance.detach().float().clamp(min=0.0).sqrt().nan_to_num(nan=0.0, posinf=0.0) * single
    return found


def moved_from(first: dict[str, Tensor], model: nn.Module) -> list[Value]:
    """Copies of a model's parameters and buffers, each with what it was at `first`."""
    scales = _scales_of_means(dict(_state(model)))
    return [(value.detach().clone(), first[name], scales.get(name)) for name, value in _state(model)]


def begin_again(model: nn.Module, optimizer: torch.optim.Optimizer, first: dict[str, Tensor]) -> None:
    """Set a model back to what it was at `first`, and its optimizer's state to zeros."""
    with torch.no_grad():
        for name, value in _state(model):
            value.copy_(first[name])
        for state in optimizer.state.values():
            for value in filter(torch.is_tensor, state.values()):
                value.zero_()


def rounded(model: nn.Module) -> None:
    """Change all parameters by about one rounding, at random."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.mul_(1 + ROUNDING * torch.randn_like(parameter))


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def is_right(found: Sequence[Value], wanted: Sequence[Value], again: Sequence[Sequence[Value]]) -> bool | None:
    """Whether each value is as near to eager PyTorch's, `wanted`, as `TOLERANCE` or eager's own runs `again` say.

    A value may differ by `SENSITIVITY` times what eager's own differs by, or what eager's steady values do: the sign of
    a number near 0 changes here or there by chance. Values that only rounding moves are not steady.
    None where that is not known: there is nothing to compare, or eager is infinitely far from itself.
    """
    own = [max(each) for each in zip(*(differences(one, wanted) for one in again), strict=True)] or [0.0] * len(wanted)
    steady = max((near for near in own if near <= _STEADY), default=0.0)
    pairs = zip(differences(found, wanted), own, strict=False)
    far = [(off, max(near, steady)) for off, near in pairs if off > TOLERANCE]
    if any(off > SENSITIVITY * near for off, near in far if math.isfinite(near)):
        return False
    return True if wanted and all(math.isfinite(near) for _, near in far) else None


def differences(found: Sequence[Value], wanted: Sequence[Value]) -> list[float]:
    """For each value its largest difference from the wanted one, or of how far both moved from what was before.

    As a share of the largest number of its group (`largest_of_groups`); inf where values do not fit.
    """
    if [(one.shape, one.dtype) for one, *_ in found] != [(one.shape, one.dtype) for one, *_ in wanted]:
        return [math.inf] * max(1, len(wanted))
    return [_difference(*one, *other) for one, other in zip(found, wanted, strict=True)]


def _difference(
    one: Tensor, one_before: Tensor | None, _: Tensor | None, other: Tensor, other_before: Tensor | None,
    scale: Tensor | None,
) -> float:  # fmt: skip
    if not (other.is_floating_point() or other.is_complex()):
        return 0.0 if one.equal(other) else math.inf
    if other.numel() == 0:
        return 0.0
    one, other, slack = _wide(one), _wide(other), torch.zeros(())
    if one_before is not None and other_before is not None:
        rounded = torch.maximum(one.abs(), other.abs())
        rounded = rounded if scale is None else torch.maximum(rounded, _wide(scale))
        slack = _ROUNDINGS * torch.finfo(other_before.dtype).eps * rounded
        one, other = one - _wide(one_before), other - _wide(other_before)
    finite = other.isfinite() & one.isfinite()
    if not bool((finite | (one == other) | (one.isnan() & other.isnan())).all()):
        return math.inf
    error = ((one - other).abs() - slack).clamp(min=0.0).where(finite, 0.0)
    largest = largest_of_groups(other.abs().where(finite, 0.0), TOLERANCE).clamp(min=1e-30)
    return float((error / largest).max())


def _wide(tensor: Tensor) -> Tensor:
    """The numbers in double precision; of complex ones both parts."""
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()
