"""How sensitive eager PyTorch's own step is to rounding, by further runs of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threadcast.runtime.check.limits import (
    HALF_PRECISION,
    all_finite,
    dense,
    errors_of,
    is_real_or_complex,
    plain_limits,
    precise,
    real_type,
    sizes_of,
)
from threadcast.threads.openmp import torch_threads

REORDERED = 4
"""A plan may differ by this many times the difference between eager's results with one thread and with several. It adds
in other orders too; where terms cancel out, as in the gradient of a bias before a batch norm, nothing else is left."""
OFTEN = 8
"""Where so many of eager's own numbers change, times `Nudge.times`, by more than is allowed else, this many times as
many of a plan's may: one rank that changes is no reason to allow as much of all numbers. They are other numbers in each
step, and a plan's roundings are larger than one of the inputs."""
_PLAN_ROUNDINGS = 2
"""Of steps with inputs changed by more roundings than this, fewer of the numbers that change count accordingly."""
SAME_WAY = 0.5
"""Smallest share of eager's movement that a plan must move, and smallest cosine of the angle between both movements, in
half precision. In other types a plan must not move the opposite way, where eager's own movement is steady: a part of a
tensor that only roundings move (the keys' bias of an attention, by Adam) widens what the other parts may differ by."""
VAGUE = 1 / 16
"""Share of itself by which a number must change where inputs change by a few roundings, so that it counts as rounding
alone: a bias before a batch norm has a gradient of zero, and eager's is what is left where its terms cancel out."""
MANY = 16
"""Fewest numbers of a tensor whose direction of movement is compared."""


class Nudge(NamedTuple):
    """An eager step with changed inputs, which shows how sensitive the step is to rounding."""

    roundings: int = 1
    """By how many roundings each number is changed."""
    times: int = 20
    """A plan may differ by this many times the change of eager's own result."""


_NUDGES = Nudge(), Nudge(), Nudge(8, 2), Nudge(8, 2)
"""Where terms cancel out, the change varies between steps, and is no larger for more roundings: it counts `times`. But
the more roundings, the more numbers near zero change their sign before a ReLU, as a plan's do in other places than
eager's."""
_COARSE_NUDGES = (Nudge(),) * 3
"""The same where half precision is used: a few of its roundings are no small change."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How much eager's own value varies between runs of a step whose inputs differ by some roundings."""

    allowed: float = 0.0
    """The further difference that a plan may have."""
    numbers: int = 0
    """In how many numbers eager's own difference, multiplied like `allowed`, is beyond what is allowed else."""
    steady: bool = True
    """Whether the value moves about as far and in the same direction in all these runs."""
    infinities: int = 0
    """How many of eager's numbers that are not finite are other numbers in one of these runs."""
    runs: int = 0
    """How many of these runs had changed inputs."""
    vague: int = 0
    """In how many of them at least half of the numbers, or of their movements, were unsure: they changed by more than
    `VAGUE`, or are movements of a rounding. Numbers that are 0, or stay, do not count."""

    @property
    def only_rounding(self) -> bool:
        """Whether all of eager's own numbers, or movements, come from rounding: of the exact ones nothing is known."""
        return self.runs > 1 and self.vague == self.runs


EXACT = Sensitivity()
"""The sensitivity of a value of which nothing is known."""

Enough = Callable[[str, Sensitivity], bool]
"""Whether a value, by its name, need not be known to be more sensitive than that."""


class EagerRun(NamedTuple):
    """Another run of eager's step: how its differences count, its values, and what these were before it."""

    nudge: Nudge
    values: Mapping[str, Any]
    before: Mapping[str, Any]


def sensitivities(
    eager: Mapping[str, Any], runs: Iterable[EagerRun], *, before: Mapping[str, Any], enough: Enough = lambda *_: False
) -> dict[str, Sensitivity]:
    """Return for each value of `eager` how sensitive eager itself is to rounding, by further runs of its step.

    They are on inputs changed by some roundings (`nudged`), or with another number of threads. A plan may differ by
    `Nudge.times` the largest difference of `eager` from these, in `OFTEN` times as many numbers; numbers that are
    finite only in `eager` do not count. `before` holds the values from before the step: of values that are in it and in
    what was before a run, the movements are compared, and one rounding of the value does not count. Runs are taken only
    until what is known is `enough` of all values; of those of which it is, further runs are not looked at.
    """
    left = {
        name: value
        for name, value in eager.items()
        if isinstance(value, Tensor) and is_real_or_complex(value) and value.numel()
    }
    found = dict.fromkeys(left, EXACT)
    for run in runs:
        for name, value in left.items():
            found[name] = _with_run(found[name], name, value, before.get(name), run)
        left = {name: value for name, value in left.items() if not enough(name, found[name])}
        if not left:
            break
        del run  # as large as all that the step may change, and so is the next one
    return found


def other_threads() -> AbstractContextManager[None]:
    """Within the context PyTorch runs operators with one thread where it had several, and with two where it had one."""
    return torch_threads(2 if torch.get_num_threads() == 1 else 1)


def nudges_for(values: Iterable[Any]) -> tuple[Nudge, ...]:
    """Return how inputs are changed to see how sensitive a step is that has these values."""
    tensors = [value for value in values if isinstance(value, Tensor) and is_real_or_complex(value)]
    return _COARSE_NUDGES if any(torch.finfo(one.dtype).eps > HALF_PRECISION for one in tensors) else _NUDGES


def nudged(tensors: Mapping[str, Tensor], *, seed: int = 0, roundings: int = 1) -> dict[str, Tensor]:
    """Return copies whose numbers are larger or smaller by so many roundings, at random by `seed`.

    They stay between a tensor's smallest and largest number, so that probabilities stay below 1; those of a constant
    tensor do not. Tensors of integers or booleans, and sparse ones, are copied unchanged.
    """
    sizes: dict[torch.dtype, int] = {}
    for tensor in filter(_may_be_nudged, tensors.values()):
        sizes[tensor.dtype] = max(sizes.get(tensor.dtype, 0), tensor.numel())
    factors = {dtype: _factors(size, dtype, seed, roundings) for dtype, size in sizes.items()}
    return {
        name: _times(tensor.detach(), factors[tensor.dtype]) if _may_be_nudged(tensor) else tensor.detach().clone()
        for name, tensor in tensors.items()
    }


def _may_be_nudged(tensor: Tensor) -> bool:
    return is_real_or_complex(tensor) and tensor.layout is torch.strided


def _times(tensor: Tensor, factors: Tensor) -> Tensor:
    """The product with as many factors as there are numbers, between the smallest number and the largest."""
    changed = tensor * factors[: tensor.numel()].view(tensor.shape)  # rounded once: factors are exact
    if changed.numel() and not changed.is_complex():
        low, high = tensor.aminmax()
        if bool(low < high):
            changed.clamp_(low, high)
    return changed


def moves_alike(wanted: Tensor, found: Tensor, *, share: float = SAME_WAY) -> bool:
    """Whether a movement is at least this share of the wanted one, and of many numbers in about the same direction.

    With a share of 0, it must only not go the opposite way.
    """
    wide = torch.complex128 if wanted.is_complex() else torch.float64  # squares of large numbers would overflow
    wanted, found = wanted.flatten().to(wide), found.flatten().to(wide)
    product = float(torch.vdot(wanted, found).real)
    mine, other = float(torch.linalg.vector_norm(wanted)), float(torch.linalg.vector_norm(found))
    if product != product or mine == 0.0:
        return True
    return product >= share * mine * mine and (wanted.numel() < MANY or product >= share * mine * other)


def surely_alike(worst: float, largest: float, numbers: int) -> bool:
    """Whether two movements are alike without a look at their directions (the triangle inequality, shares up to 0.5).

    `worst` is the largest difference between two of their numbers, `largest` the largest movement.
    """
    return worst * math.sqrt(numbers) <= largest / 3


def _with_run(known: Sensitivity, name: str, value: Tensor, start: Any, run: EagerRun) -> Sensitivity:
    """The sensitivity of a value, which was `start` before eager's step, by one run more."""
    (roundings, times), other, other_start = run.nudge, run.values.get(name), run.before.get(name)
    if not isinstance(other, Tensor) or other.shape != value.shape:
        return known
    value = dense(value)
    wanted, found, steady = precise(value), precise(dense(other)), True
    moves = isinstance(start, Tensor) and start.shape == value.shape
    movement = wanted - precise(start) if moves else wanted
    sizes, moved = sizes_of(wanted), sizes_of(movement) if moves else None
    plain = plain_limits(value.dtype, sizes, moved)
    errors, infinities, nudged_runs, vague = errors_of(wanted, found), 0, known.runs, known.vague
    eps, largest = torch.finfo(value.dtype).eps, sizes if moved is None else moved
    if not all_finite(errors):
        infinities = int((~errors.isfinite() & ~wanted.isfinite()).sum())
    unsure = errors > VAGUE * largest
    if moved is not None and isinstance(other_start, Tensor):
        other_movement = found - precise(other_start)
        errors = errors_of(movement, other_movement)
        alike = surely_alike(float(errors.max()), float(moved.max()), value.numel())
        steady = alike or moves_alike(movement, other_movement)
        unsure = (errors > VAGUE * moved) | ((moved > 0) & (moved <= eps * sizes))
        errors -= torch.maximum(sizes, found.abs()).mul_(eps)
    if times != REORDERED and eps < HALF_PRECISION:
        nudged_runs, doubtful = nudged_runs + 1, int(unsure.sum())
        vague += doubtful > 0 and doubtful >= int((unsure | (largest > 0)).sum()) / 2
    errors = errors.nan_to_num_(nan=0.0, posinf=0.0).clamp_(min=0.0)
    errors.mul_(times)
    numbers = math.ceil(int((errors > plain).sum()) * min(1.0, _PLAN_ROUNDINGS / roundings))
    return Sensitivity(
        max(known.allowed, float(errors.max())), max(known.numbers, numbers),
        known.steady and steady, max(known.infinities, infinities), nudged_runs, vague,
    )  # fmt: skip


def _factors(size: int, dtype: torch.dtype, seed: int, roundings: int) -> Tensor:
    """So many numbers that are by some roundings more or less than 1; a random byte chooses eight of them."""
    by = roundings * torch.finfo(dtype).eps
    less, more = torch.tensor([1 - by, 1 + by], dtype=real_type(dtype))
    coin = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 256, (-(-size // 8), 1), generator=coin, dtype=torch.uint8)
    bits = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8)
    return torch.where(drawn.bitwise_and(bits).flatten()[:size] != 0, more, less)
