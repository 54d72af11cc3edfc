"""Compares the values of a plan's step with those of eager PyTorch, and finds those that differ beyond rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threadcast.runtime.verification.running_means import scales_of_means

RELATIVE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 0.02, torch.bfloat16: 0.02}
"""By data type, how much a number may differ, as a share of the largest number of its tensor, or of its group there
(`largest_of_groups`). For values that the step changes, as a share of the largest change. This, the next two and
`_NUDGES` were chosen by right and wrong plans of the built-in networks (decision 25): right ones differ by a fifth of
what is allowed or less in float32, and by a twelfth in bfloat16."""
ROUNDINGS = 4
"""Roundings (machine epsilons times the number itself) by which each number may differ in addition."""
REORDERED = 4
"""A plan may differ by this many times the difference between eager's results with one thread and with several. It adds
in other orders too; where terms cancel out, as in the gradient of a bias before a batch norm, nothing else is left."""


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
OFTEN = 8
"""Where so many of eager's own numbers change, multiplied as above, by more than is allowed else, this many times as
many of a plan's may: one rank that changes is no reason to allow as much of all numbers. They are other numbers in each
step, and a plan's roundings are larger than one of the inputs."""
_PLAN_ROUNDINGS = 2
"""Of steps with inputs changed by more roundings than this, fewer of the numbers that change count accordingly."""
_CHANCE = 0.1
"""Up to this share of the largest number, or change, of its group a difference may be one step's only, where an
operator jumps (`jumps.py`): a number near zero has another sign before a ReLU in a plan than in eager, and some
gradients of the step differ by that term."""
MOVED_ROUNDINGS = 1
"""The same as `ROUNDINGS` for values that the step changes, in half precision: most updates are no larger than a few
roundings of the number itself there."""
_STILL = 4
"""A tensor that a plan left unchanged is wrong if eager changed at least this many of its numbers, and a quarter."""
_HALF_PRECISION = 5e-4
"""Smallest machine epsilon of the data types of 16 bits."""
_CLEAR = 4
"""A movement is clear if it is more than this many roundings of the number itself, and twice what it may differ by."""
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
    """Whether the numbers differ by so little that rounding may have caused it in this one step."""

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

Enough = Callable[[str, Sensitivity], bool]
"""Whether a value, by its name, need not be known to be more sensitive than that."""


class EagerRun(NamedTuple):
    """Another run of eager's step: how its differences count, its values, and what these were before it."""

    nudge: Nudge
    values: Mapping[str, Any]
    before: Mapping[str, Any]


def first_difference(
    eager: Mapping[str, Any],
    plan: Mapping[str, Any],
    *,
    before: Mapping[str, Any] | None = None,
    sensitivity: Mapping[str, Sensitivity] | None = None,
    scales: Mapping[str, Tensor] | None = None,
    jumps: bool = False,
) -> Difference | None:
    """Return the first value in which `plan` differs from `eager` beyond rounding; None where all values agree.

    Where the step `jumps`, small differences may be chance; one is returned only where no other value differs.

    Both map names to tensors, numbers and other constants. `before` holds values from before the step (parameters,
    buffers, optimizer state); differences in these are judged relative to how much eager changed them. `sensitivity`
    holds what `sensitivities` returns, `scales` what `scales_of_means` does of all of eager's values, by default of
    `eager`.
    """
    chance: Difference | None = None
    scales = scales_of_means(eager) if scales is None else scales
    for name, wanted in eager.items():
        if name not in plan:
            return Difference(name, "eager has it, the plan does not")
        start, allowed = (before or {}).get(name), (sensitivity or {}).get(name, EXACT)
        found = value_difference(
            name, wanted, plan[name], before=start, sensitivity=allowed, scale=scales.get(name), jumps=jumps
        )
        if found is not None and not found.may_be_chance:
            return found
        chance = chance or found
    extra = next((name for name in plan if name not in eager), None)
    return Difference(extra, "the plan has it, eager does not") if extra is not None else chance


def first_beyond_rounding(
    eager: Mapping[str, Any],
    plan: Mapping[str, Any],
    sensitivity: Callable[[Sequence[str], Enough], Mapping[str, Sensitivity]],
    *,
    before: Mapping[str, Any] | None = None,
    jumps: bool = False,
) -> Difference | None:
    """Return what `first_difference` does with the sensitivity of all values, and ask for that of few.

    `sensitivity` takes the names of values that differ where nothing is known of them: the others agree in any case. It
    is not called where there are none, and may stop where it is `Enough` for all: a value that agrees goes on to agree
    where it is known to be more sensitive.
    """
    scales = scales_of_means(eager)

    def agrees(name: str, known: Sensitivity = EXACT) -> bool:
        start, scale = (before or {}).get(name), scales.get(name)
        found = value_difference(name, eager[name], plan[name], before=start, sensitivity=known, scale=scale)
        return found is None

    agree = {name for name in eager if name in plan and agrees(name)}
    differ = [name for name in eager if name in plan and name not in agree]
    return first_difference(
        {name: value for name, value in eager.items() if name not in agree},
        {name: value for name, value in plan.items() if name not in agree},
        before=before,
        sensitivity=sensitivity(differ, agrees) if differ else None,
        scales=scales,
        jumps=jumps,
    )


def value_difference(
    name: str, eager: Any, plan: Any, *, before: Any = None, sensitivity: Sensitivity = EXACT,
    scale: Tensor | None = None, jumps: bool = False,
) -> Difference | None:  # fmt: skip
    """Return the difference of one value, None where both agree. `before`: its value before the step, if it had one.

    Roundings are those of `scale`, a tensor of the value's shape, where that is larger than the value's own numbers.
    Where the step `jumps`, a small difference may be chance.
    """
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
    return _rounded_difference(name, eager, plan, _start(eager, before), sensitivity, scale, jumps)


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
        if isinstance(value, Tensor) and _is_real_or_complex(value) and value.numel()
    }
    found = dict.fromkeys(left, EXACT)
    for run in runs:
        for name, value in left.items():
            found[name] = _with_run(found[name], name, value, before.get(name), run)
        left = {name: value for name, value in left.items() if not enough(name, found[name])}
        if not left:
            break
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


def _with_run(known: Sensitivity, name: str, value: Tensor, start: Any, run: EagerRun) -> Sensitivity:
    """The sensitivity of a value, which was `start` before eager's step, by one run more."""
    (roundings, times), other, other_start = run.nudge, run.values.get(name), run.before.get(name)
    if not isinstance(other, Tensor) or other.shape != value.shape:
        return known
    value = _dense(value)
    wanted, found, steady = _precise(value), _precise(_dense(other)), True
    moves = isinstance(start, Tensor) and start.shape == value.shape
    movement = wanted - _precise(start) if moves else wanted
    plain = _plain_limits(value.dtype, _sizes(wanted), _sizes(movement) if moves else None)
    errors, finite = _errors(wanted, found), wanted.isfinite()
    infinities = 0 if bool(finite.all()) else int((~errors.isfinite() & ~finite).sum())
    if moves and isinstance(other_start, Tensor):
        other_movement = found - _precise(other_start)
        slack = torch.finfo(value.dtype).eps * torch.maximum(wanted.abs(), found.abs())
        errors = _errors(movement, other_movement) - slack
        steady = _moves_alike(movement, other_movement)
    errors = errors.nan_to_num_(nan=0.0, posinf=0.0).clamp_(min=0.0).mul_(times)
    numbers = math.ceil(int((errors > plain).sum()) * min(1.0, _PLAN_ROUNDINGS / roundings))
    return Sensitivity(
        max(known.allowed, float(errors.max())), max(known.numbers, numbers),
        known.steady and steady, max(known.infinities, infinities),
    )  # fmt: skip


def _moves_alike(wanted: Tensor, found: Tensor, *, share: float = _SAME_WAY) -> bool:
    """Whether a movement is at least this share of the wanted one, and of many numbers in about the same direction.

    With a share of 0, it must only not go the opposite way.
    """
    wide = torch.complex128 if wanted.is_complex() else torch.float64  # squares of large numbers would overflow
    wanted, found = wanted.flatten().to(wide), found.flatten().to(wide)
    product = float(torch.vdot(wanted, found).real)
    mine, other = float(torch.linalg.vector_norm(wanted)), float(torch.linalg.vector_norm(found))
    if product != product or mine == 0.0:
        return True
    return product >= share * mine * mine and (wanted.numel() < _MANY or product >= share * mine * other)


def nudges_for(values: Iterable[Any]) -> tuple[Nudge, ...]:
    """Return how inputs are changed to see how sensitive a step is that has these values."""
    tensors = [value for value in values if isinstance(value, Tensor) and _is_real_or_complex(value)]
    return _COARSE_NUDGES if any(torch.finfo(one.dtype).eps > _HALF_PRECISION for one in tensors) else _NUDGES


def nudged(tensor: Tensor, *, seed: int = 0, roundings: int = 1) -> Tensor:
    """Return a copy whose numbers are larger or smaller by so many roundings, at random by `seed`.

    They stay between the tensor's smallest and largest number, so that probabilities stay below 1; those of a constant
    tensor do not. Tensors of integers or booleans, and sparse ones, are copied unchanged.
    """
    if not _is_real_or_complex(tensor) or tensor.layout is not torch.strided:
        return tensor.detach().clone()
    by = roundings * torch.finfo(tensor.dtype).eps
    less, more = torch.tensor([1 - by, 1 + by], dtype=_real(tensor.dtype))
    changed = tensor.detach() * torch.where(_coins(tensor.shape, seed), more, less)  # rounded once: factors are exact
    if changed.numel() and not changed.is_complex():
        low, high = tensor.detach().aminmax()
        if bool(low < high):
            changed = changed.clamp(low, high)
    return changed


def _coins(shape: torch.Size, seed: int) -> Tensor:
    """Random booleans; a random byte gives eight, which is faster than a random number for each."""
    size = math.prod(shape)
    coin = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 256, (-(-size // 8), 1), generator=coin, dtype=torch.uint8)
    bits = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8)
    return drawn.bitwise_and(bits).flatten()[:size].view(shape) != 0


class _Compared:
    """The numbers of one value of a plan's step beside eager's, and by how much they may differ in any case."""

    def __init__(self, eager: Tensor, plan: Tensor, before: Tensor | None, scale: Tensor | None) -> None:
        self.wanted, self.found = _precise(eager), _precise(plan)
        self.error = _errors(self.wanted, self.found)
        self.before = None if before is None else _precise(before)
        self.reference = self.wanted if self.before is None else self.wanted - self.before
        self.size = _sizes(self.wanted)
        self.moved = None if before is None else _sizes(self.reference)
        self.rounded = self.size if scale is None else torch.maximum(self.size, _precise(scale))
        self.plain = _plain_limits(eager.dtype, self.size, self.moved, self.rounded)

    @property
    def largest(self) -> Tensor:
        """Sizes of which differences are a share: those of the movements where the step changes the value."""
        return self.size if self.moved is None else self.moved


def excess(eager: Tensor, plan: Tensor, *, before: Any = None, scale: Tensor | None = None) -> Tensor:
    """Return by how much each number differs beyond what any value's may, below 0 where it differs by less.

    The arguments are those of `value_difference`, of floating-point or complex numbers and of one shape. A number that
    is infinite or NaN in one of both only is infinitely far beyond.
    """
    of = _Compared(_dense(eager).detach(), _dense(plan).detach(), _start(eager, before), scale)
    return (of.error - of.plain).nan_to_num(nan=math.inf, posinf=math.inf)


def _rounded_difference(
    name: str, eager: Tensor, plan: Tensor, before: Tensor | None, sensitivity: Sensitivity, scale: Tensor | None,
    jumps: bool,
) -> Difference | None:  # fmt: skip
    of = _Compared(eager, plan, before, scale)
    error = of.error
    if not bool((finite := error.isfinite()).all()):
        if bool((~finite & of.wanted.isfinite()).any()) or int((~finite).sum()) > OFTEN * sensitivity.infinities:
            return Difference(name, f"numbers that are not finite differ ({_short(eager)})")
        error = torch.where(finite, error, 0.0)
    eps, worst, largest = torch.finfo(eager.dtype).eps, float(error.max()), float(of.largest.max())
    if before is not None and sensitivity.steady and torch.equal(plan, before.to(plan.dtype)):
        movements = int((eager != before).sum())
        if movements >= max(_STILL, eager.numel() // 4):
            return Difference(name, f"did not move, eager's moved by up to {largest:.3g} ({_short(eager)})", worst)
    if is_beyond(error - of.plain, sensitivity):
        beyond = int((error > of.plain).sum())
        numbers = f"numbers up to {largest:.3g}" if before is None else f"movements up to {largest:.3g}"
        more = f", in {beyond} numbers, of which {_most(sensitivity)} may" if sensitivity.allowed else ""
        said = f"differs by up to {worst:.3g}, with {numbers}{more} ({_short(eager)})"
        most = of.plain + _CHANCE * _largest(eager.dtype, of.size, of.moved)
        chance = jumps and bool((error <= most).all())
        norms = [torch.linalg.vector_norm(one.double()) for one in (error, of.largest)]
        return Difference(name, said, worst, may_be_chance=chance and bool(norms[0] <= _CHANCE * norms[1]))
    if of.before is None or not sensitivity.steady or eager.numel() < _MANY:
        return None
    clear = max(_CLEAR, 2 * _roundings(eager.dtype, of.moved)) * eps * of.rounded
    share = 0.0 if eps < _HALF_PRECISION else _SAME_WAY
    if int((of.reference.abs() > clear).sum()) >= eager.numel() // 2 and not _moves_alike(
        of.reference, of.found - of.before, share=share
    ):
        reason = f"moved otherwise than eager's, which moved by up to {largest:.3g} ({_short(eager)})"
        return Difference(name, reason, worst)
    return None


def is_beyond(excess: Tensor, sensitivity: Sensitivity) -> bool:
    """Whether numbers differ beyond rounding, by how much each does beyond what any value may."""
    return bool((excess > sensitivity.allowed).any()) or int((excess > 0).sum()) > _most(sensitivity)


def _most(sensitivity: Sensitivity) -> int:
    """How many numbers may differ by more than any value may."""
    return max(1, OFTEN * sensitivity.numbers)


def _start(eager: Tensor, before: Any) -> Tensor | None:
    """A value's numbers before the step, where it had as many."""
    return before if isinstance(before, Tensor) and before.shape == eager.shape else None


def _plain_limits(dtype: torch.dtype, sizes: Tensor, moved: Tensor | None, rounded: Tensor | None = None) -> Tensor:
    """By how much numbers may differ where nothing is known of their sensitivity, by their sizes and movements.

    Their roundings are those of `rounded`, by default of their sizes.
    """
    eps = torch.finfo(dtype).eps * (sizes if rounded is None else rounded)
    return RELATIVE[_real(dtype)] * _largest(dtype, sizes, moved) + _roundings(dtype, moved) * eps


def _roundings(dtype: torch.dtype, moved: Tensor | None) -> int:
    """By how many roundings of itself a number may differ."""
    return ROUNDINGS if moved is None or torch.finfo(dtype).eps < _HALF_PRECISION else MOVED_ROUNDINGS


def _largest(dtype: torch.dtype, sizes: Tensor, moved: Tensor | None) -> Tensor:
    """The largest size, or movement where there are any, of each number's group."""
    return largest_of_groups(sizes if moved is None else moved, RELATIVE[_real(dtype)])


def shares(wanted: Tensor, found: Tensor, *, gap: float) -> Tensor:
    """Return how far each number found is from the one wanted, as a share of the largest number of its group.

    Both are of one shape and of floating-point or complex numbers; the result is in float64. It is 0 where both are the
    same infinity or NaN, and infinite where only one is. `gap`: see `largest_of_groups`.
    """
    wanted, found = (_dense(one).to(torch.complex128 if one.is_complex() else torch.float64) for one in (wanted, found))
    if not wanted.numel():
        return torch.zeros(wanted.shape, dtype=torch.float64)
    error = _errors(wanted, found).nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(error > 0, error / largest_of_groups(_sizes(wanted), gap), error)


def largest_of_groups(sizes: Tensor, share: float) -> Tensor:
    """Return for each size (finite) the largest size of its group, or one number where there is one group.

    Wide gaps separate groups: so many powers of two in a row without a size that what is below is less than `share` of
    what is above. Beside a mask of -1e30 other numbers are a group of their own. Zeros belong to the lowest group.
    """
    smallest = float(sizes.where(sizes > 0, math.inf).min())
    if smallest >= share * float(sizes.max()):
        return sizes.max()
    powers = torch.frexp(sizes.clamp(min=smallest)).exponent
    powers -= powers.min()
    present = torch.bincount(powers.flatten()).nonzero().flatten()
    last = torch.cat([present.diff() - 1 > -math.log2(share), torch.ones(1, dtype=torch.bool)])
    ends = present[last]
    if len(ends) == 1:
        return sizes.max()
    powers = powers.long()
    largest = sizes.new_zeros(int(ends[-1]) + 1).scatter_reduce_(0, powers.flatten(), sizes.flatten(), "amax")
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
    """A tensor in a type in which differences of numbers of its own type that are near each other are exact."""
    wide = {torch.float64: torch.float64, torch.complex128: torch.complex128}
    narrow = torch.complex64 if tensor.is_complex() else torch.float32
    return tensor.detach().to(wide.get(tensor.dtype, narrow))


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return repr(value)[:60]
