"""Compares the values of a plan's step with those of eager PyTorch, and finds those that differ beyond rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

RELATIVE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 0.02, torch.bfloat16: 0.02}
"""By data type, how much a number may differ, as a share of the largest number of its tensor, or of its group there
(`largest_of_groups`). For values that the step changes, as a share of the largest change. This and the next four
constants were chosen by right and wrong plans of the built-in networks (decision 25): right ones differ by a fifth of
what is allowed or less in float32, and by a twelfth in bfloat16."""
ROUNDINGS = 4
"""Roundings (machine epsilons times the number itself) by which each number may differ in addition."""
NUDGED_ROUNDINGS = 8
"""Roundings by which inputs are changed to see how eager's own result changes; one in half precision. The more it is,
the more values change their sign before a ReLU: a plan's do so too, in other places than eager's (decision 25)."""
SENSITIVITY = 4
"""A plan may differ by this many times the change of eager's own result when the inputs change so."""
_HALF_SENSITIVITY = 20
"""The same in half precision."""
REORDERED = 4
"""A plan may differ by this many times the difference between eager's results with one thread and with several. It adds
in other orders too; where terms cancel out, as in the gradient of a bias before a batch norm, nothing else is left."""
NUDGES = 3
"""Eager steps with changed inputs that measure this change: where terms cancel out, it varies between such steps."""
OFTEN = 8
"""Where so many of eager's own numbers change, multiplied as above, by more than is allowed else, this many times as
many of a plan's may: one rank that changes is no reason to allow as much of all numbers. They are other numbers in each
step, and a plan's roundings are larger than one of the inputs."""
_CHANCE = 0.1
"""Up to this share of the largest number, or change, of its tensor a difference may be one step's only: a number near
zero has another sign before a ReLU in a plan than in eager, and some gradients of the step differ by that term."""
MOVED_ROUNDINGS = 1
"""The same as `ROUNDINGS` for values that the step changes, in half precision: most updates are no larger than a few
roundings of the number itself there."""
_STILL = 4
"""A tensor that a plan left unchanged is wrong if eager changed at least this many of its numbers, and a quarter."""
_HALF_PRECISION = 5e-4
"""Smallest machine epsilon of the data types of 16 bits."""
_CLEAR = 4
"""A movement is clear if it is more than this many roundings of the number itself."""
_SAME_WAY = 0.5
"""Smallest share of eager's movement that a plan must move, and smallest cosine of the angle between both movements, in
half precision. In other types a plan must not move the opposite way, where eager's own movement is steady: a part of a
tensor that only roundings move (the keys' bias of an attention, by Adam) widens what the other parts may differ by."""
_MANY = 16
"""Fewest numbers of a tensor whose direction of movement is compared."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value of a plan's step that differs from eager's: its `name`, and `reason`, the difference in words."""

    name: str
    reason: str
    largest: float = float("inf")
    """The largest difference between two numbers; infinite where something else than numbers differs."""
    may_be_chance: bool = False
    """Whether the numbers differ by so little that rounding may have caused it in this one step (`proof`)."""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


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


EXACT = Sensitivity()
"""The sensitivity of a value of which nothing is known."""


def first_difference(
    eager: Mapping[str, Any],
    plan: Mapping[str, Any],
    *,
    before: Mapping[str, Any] | None = None,
    sensitivity: Mapping[str, Sensitivity] | None = None,
) -> Difference | None:
    """Return the first value in which `plan` differs from `eager` beyond rounding; None where all values agree.

    One that may differ by chance is returned only where no other value differs.

    Both map names to tensors, numbers and other constants. `before` holds values from before the step (parameters,
    buffers, optimizer state); differences in these are judged relative to how much eager changed them. `sensitivity`
    holds what `sensitivities` returns.
    """
    chance: Difference | None = None
    for name, wanted in eager.items():
        if name not in plan:
            return Difference(name, "eager has it, the plan does not")
        start, allowed = (before or {}).get(name), (sensitivity or {}).get(name, EXACT)
        found = value_difference(name, wanted, plan[name], before=start, sensitivity=allowed)
        if found is not None and not found.may_be_chance:
            return found
        chance = chance or found
    extra = next((name for name in plan if name not in eager), None)
    return Difference(extra, "the plan has it, eager does not") if extra is not None else chance


def first_beyond_rounding(
    eager: Mapping[str, Any],
    plan: Mapping[str, Any],
    sensitivity: Callable[[Sequence[str]], Mapping[str, Sensitivity]],
    *,
    before: Mapping[str, Any] | None = None,
) -> Difference | None:
    """Return what `first_difference` does with the sensitivity of all values, and ask for that of few.

    `sensitivity` takes the names of values that differ where nothing is known of them: the others agree in any case. It
    is not called where there are none.
    """
    agree = {
        name
        for name, wanted in eager.items()
        if name in plan and value_difference(name, wanted, plan[name], before=(before or {}).get(name)) is None
    }
    differ = [name for name in eager if name in plan and name not in agree]
    return first_difference(
        {name: value for name, value in eager.items() if name not in agree},
        {name: value for name, value in plan.items() if name not in agree},
        before=before,
        sensitivity=sensitivity(differ) if differ else None,
    )


def value_difference(
    name: str, eager: Any, plan: Any, *, before: Any = None, sensitivity: Sensitivity = EXACT
) -> Difference | None:
    """Return the difference of one value, None where both agree. `before`: its value before the step, if it had one."""
    if not isinstance(eager, Tensor) or not isinstance(plan, Tensor):
        same = type(eager) is type(plan) and (eager == plan or (eager != eager and plan != plan))
        return None if same else Difference(name, f"eager has {_short(eager)}, the plan {_short(plan)}")
    if (eager.shape, eager.dtype) != (plan.shape, plan.dtype):
        return Difference(name, f"eager has {_short(eager)}, the plan {_short(plan)}")
    eager, plan = _dense(eager).detach(), _dense(plan).detach()
    if torch.equal(eager, plan):
        return None
    if not _is_real_or_complex(eager):
        differing = int((eager != plan).sum())
        return Difference(name, f"{differing} of {eager.numel()} values differ ({_short(eager)})")
    moved = before if isinstance(before, Tensor) and before.shape == eager.shape else None
    return _rounded_difference(name, eager, plan, moved, sensitivity)


def sensitivities(
    eager: Mapping[str, Any],
    *changed: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    starts: Sequence[Mapping[str, Any]] = (),
    reordered: Mapping[str, Any] | None = None,
) -> dict[str, Sensitivity]:
    """Return for each value of `eager` how sensitive eager itself is to rounding.

    `changed` are the values of the same step on inputs changed by some roundings (`nudged`). A plan may differ by
    `SENSITIVITY` times the largest difference of `eager` from these (more in half precision), in `OFTEN` times as many
    numbers; numbers that are finite only in `eager` do not count. `before` holds the values from before the step and
    `starts` those from before each step of `changed`: of values in both, the movements are compared, and one rounding
    of the value does not count. `reordered` are the values of the step on the same inputs with another number of
    threads, which count `REORDERED` times.
    """
    found: dict[str, Sensitivity] = {}
    for name, value in eager.items():
        if not isinstance(value, Tensor) or not _is_real_or_complex(value) or not value.numel():
            continue
        start = (before or {}).get(name)
        times = SENSITIVITY if torch.finfo(value.dtype).eps < _HALF_PRECISION else _HALF_SENSITIVITY
        runs = [
            (times, values.get(name), starts[index].get(name) if index < len(starts) else None)
            for index, values in enumerate(changed)
        ]
        runs.append((REORDERED, (reordered or {}).get(name), start))
        compared = [(n, one, at) for n, one, at in runs if isinstance(one, Tensor) and one.shape == value.shape]
        found[name] = _one_sensitivity(value, start, compared)
    return found


@contextmanager
def other_threads() -> Iterator[None]:
    """Within the context PyTorch runs operators with one thread where it had several, and with two where it had one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _one_sensitivity(value: Tensor, start: Any, runs: Sequence[tuple[int, Tensor, Any]]) -> Sensitivity:
    """The sensitivity of a value by other runs: how many times their differences count, their value and its start."""
    value = _dense(value)
    wanted, moves = _precise(value), isinstance(start, Tensor) and start.shape == value.shape
    movement = wanted - _precise(start) if moves else wanted
    plain = _plain_limits(value.dtype, _sizes(wanted), _sizes(movement) if moves else None)
    finite = wanted.isfinite()
    all_finite, known = bool(finite.all()), Sensitivity()
    for times, other, other_start in runs:
        found, steady = _precise(_dense(other)), True
        errors = _errors(wanted, found)
        infinities = 0 if all_finite else int((~errors.isfinite() & ~finite).sum())
        if moves and isinstance(other_start, Tensor):
            other_movement = found - _precise(other_start)
            slack = torch.finfo(value.dtype).eps * torch.maximum(wanted.abs(), found.abs())
            errors = _errors(movement, other_movement) - slack
            steady = _moves_alike(movement, other_movement)
        errors = errors.nan_to_num_(nan=0.0, posinf=0.0).clamp_(min=0.0).mul_(times)
        known = Sensitivity(
            max(known.allowed, float(errors.max())), max(known.numbers, int((errors > plain).sum())),
            known.steady and steady, max(known.infinities, infinities),
        )  # fmt: skip
    return known


def _moves_alike(wanted: Tensor, found: Tensor, *, share: float = _SAME_WAY) -> bool:
    """Whether a movement is at least this share of the wanted one, and of many numbers in about the same direction.

    With a share of 0, it must only not go the opposite way.
    """
    wanted, found = wanted.flatten(), found.flatten()
    product = float(torch.vdot(wanted, found).real)
    mine, other = float(torch.linalg.vector_norm(wanted)), float(torch.linalg.vector_norm(found))
    if product != product or mine == 0.0:
        return True
    return product >= share * mine * mine and (wanted.numel() < _MANY or product >= share * mine * other)


def nudged(tensor: Tensor, *, seed: int = 0) -> Tensor:
    """Return a copy whose numbers are larger or smaller by some roundings, at random by `seed`.

    These are `NUDGED_ROUNDINGS`, in half precision one. The numbers
    stay between the tensor's smallest and largest number, so that probabilities stay below 1; those of a constant
    tensor do not. Tensors of integers or booleans, and sparse ones, are copied unchanged.
    """
    if not _is_real_or_complex(tensor) or tensor.layout is not torch.strided:
        return tensor.detach().clone()
    coin = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, tensor.shape, generator=coin, dtype=_real(tensor.dtype)) * 2 - 1
    eps = torch.finfo(tensor.dtype).eps
    by = eps * (NUDGED_ROUNDINGS if eps < _HALF_PRECISION else 1)
    changed = tensor.detach() * (1 + signs * by)  # rounded once, as both factors are exact
    if changed.numel() and not changed.is_complex():
        low, high = tensor.detach().aminmax()
        if bool(low < high):
            changed = changed.clamp(low, high)
    return changed


def _rounded_difference(
    name: str, eager: Tensor, plan: Tensor, before: Tensor | None, sensitivity: Sensitivity
) -> Difference | None:
    wanted, found = _precise(eager), _precise(plan)
    error = _errors(wanted, found)
    if not bool((finite := error.isfinite()).all()):
        if bool((~finite & wanted.isfinite()).any()) or int((~finite).sum()) > OFTEN * sensitivity.infinities:
            return Difference(name, f"numbers that are not finite differ ({_short(eager)})")
        error = torch.where(finite, error, 0.0)
    reference = wanted if before is None else wanted - _precise(before)
    eps, size, moved = torch.finfo(eager.dtype).eps, _sizes(wanted), None if before is None else _sizes(reference)
    plain, worst = _plain_limits(eager.dtype, size, moved), float(error.max())
    largest = float((size if moved is None else moved).max())
    if before is not None and sensitivity.steady and torch.equal(plan, before.to(plan.dtype)):
        movements = int((eager != before).sum())
        if movements >= max(_STILL, eager.numel() // 4):
            return Difference(name, f"did not move, eager's moved by up to {largest:.3g} ({_short(eager)})", worst)
    beyond, most = int((error > plain).sum()), max(1, OFTEN * sensitivity.numbers)
    if bool((error > plain + sensitivity.allowed).any()) or beyond > most:
        of = f"numbers up to {largest:.3g}" if before is None else f"movements up to {largest:.3g}"
        more = f", in {beyond} numbers, of which {most} may" if sensitivity.allowed else ""
        said = f"differs by up to {worst:.3g}, with {of}{more} ({_short(eager)})"
        return Difference(name, said, worst, may_be_chance=worst <= _CHANCE * largest)
    if before is None or not sensitivity.steady or eager.numel() < _MANY:
        return None
    clear = int((reference.abs() > _CLEAR * eps * size).sum())
    share = 0.0 if eps < _HALF_PRECISION else _SAME_WAY
    if clear >= eager.numel() // 2 and not _moves_alike(reference, found - _precise(before), share=share):
        reason = f"moved otherwise than eager's, which moved by up to {largest:.3g} ({_short(eager)})"
        return Difference(name, reason, worst)
    return None


def _plain_limits(dtype: torch.dtype, sizes: Tensor, moved: Tensor | None) -> Tensor:
    """By how much numbers may differ where nothing is known of their sensitivity, by their sizes and movements."""
    share, eps = RELATIVE[_real(dtype)], torch.finfo(dtype).eps
    roundings = ROUNDINGS if moved is None or eps < _HALF_PRECISION else MOVED_ROUNDINGS
    return share * largest_of_groups(sizes if moved is None else moved, share) + roundings * eps * sizes


def shares(wanted: Tensor, found: Tensor, *, gap: float) -> Tensor:
    """Return how far each number found is from the one wanted, as a share of the largest number of its group.

    Both are of one shape and of floating-point or complex numbers; the result is in float64. It is 0 where both are the
    same infinity or NaN, and infinite where only one is. `gap`: see `largest_of_groups`.
    """
    wanted, found = _precise(_dense(wanted)), _precise(_dense(found))
    if not wanted.numel():
        return torch.zeros(wanted.shape, dtype=torch.float64)
    error = _errors(wanted, found).nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(error > 0, error / largest_of_groups(_sizes(wanted), gap), error)


def largest_of_groups(sizes: Tensor, share: float) -> Tensor:
    """Return for each size (float64, finite) the largest size of its group, or one number where there is one group.

    Wide gaps separate groups: so many powers of two in a row without a size that what is below is less than `share` of
    what is above. Beside a mask of -1e30 other numbers are a group of their own. Zeros belong to the lowest group.
    """
    smallest = float(sizes.where(sizes > 0, math.inf).min())
    if smallest >= share * float(sizes.max()):
        return sizes.max()
    powers = torch.frexp(sizes.clamp(min=smallest)).exponent.long()
    powers -= powers.min()
    largest = sizes.new_zeros(int(powers.max()) + 1).scatter_reduce_(0, powers.flatten(), sizes.flatten(), "amax")
    present = largest.nonzero().flatten()
    last = torch.cat([present.diff() - 1 > -math.log2(share), torch.ones(1, dtype=torch.bool)])
    ends = present[last]
    return largest[ends[torch.searchsorted(ends, torch.arange(len(largest)))]][powers]


def _sizes(numbers: Tensor) -> Tensor:
    """Absolute values; 0 for numbers that are not finite."""
    return numbers.abs().nan_to_num(nan=0.0, posinf=0.0)


def _errors(wanted: Tensor, found: Tensor) -> Tensor:
    """Absolute differences; 0 where both numbers are the same infinity or both are NaN."""
    same = (wanted == found) | (wanted.isnan() & found.isnan())
    return torch.where(same, 0.0, (wanted - found).abs())


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _is_real_or_complex(tensor: Tensor) -> bool:
    return _real(tensor.dtype) in RELATIVE


def _real(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}.get(
        dtype, dtype
    )


def _precise(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return repr(value)[:60]
