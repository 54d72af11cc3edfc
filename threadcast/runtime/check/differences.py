"""Compares the values of a plan's step with those of eager PyTorch, and finds those that differ beyond rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from threadcast.runtime.check.limits import (
    HALF_PRECISION,
    RELATIVE,
    all_finite,
    dense,
    errors_of,
    is_real_or_complex,
    largest_of,
    plain_limits,
    precise,
    real_type,
    roundings_of,
    sizes_of,
)
from threadcast.runtime.check.running_means import scales_of_means
from threadcast.runtime.check.sensitivity import (
    EXACT,
    MANY,
    OFTEN,
    SAME_WAY,
    Enough,
    Sensitivity,
    moves_alike,
    surely_alike,
)

_CHANCE = 0.1
"""Up to this share of the largest number, or change, of its group a difference may be one step's only, where an
operator jumps (`jumps.py`): a number near zero has another sign before a ReLU in a plan than in eager, and some
gradients of the step differ by that term."""
_OTHER_ORDER = 64
"""How many times as large as eager's what is rounding alone may be in a plan: one sum after the other, as channels last
adds up, has the root of their number, by which PyTorch's sums of sums are better. Seen: 20, of 4,096 terms."""
_STILL = 4
"""A tensor that a plan left unchanged is wrong if eager changed at least this many of its numbers, and a quarter."""
_CLEAR = 4
"""A movement is clear if it is more than this many roundings of the number itself, and twice what it may differ by."""


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


def first_difference(
    eager: Mapping[str, Any],
    plan: Mapping[str, Any],
    *,
    before: Mapping[str, Any] | None = None,
    sensitivity: Mapping[str, Sensitivity] | None = None,
    scales: Mapping[str, Tensor] | None = None,
    jumps: bool = False,
    beside: Mapping[str, Any] | None = None,
) -> Difference | None:
    """Return the first value in which `plan` differs from `eager` beyond rounding; None where all values agree.

    Where the step `jumps`, small differences may be chance; one is returned only where no other value differs.

    Both map names to tensors, numbers and other constants. `before` holds values from before the step (parameters,
    buffers, optimizer state); differences in these are judged relative to how much eager changed them. `sensitivity`
    holds what `sensitivities` returns, `scales` what `scales_of_means` does of all of eager's values, by default of
    `eager`. What of eager's is `only_rounding` may differ by as much as the rounding of values of its kind, among all
    those of the step, `beside`, by default `eager`.
    """
    chance: Difference | None = None
    scales = scales_of_means(eager) if scales is None else scales
    roundings = largest_roundings(eager if beside is None else beside, before or {}, sensitivity or {})
    for name, wanted in eager.items():
        if name not in plan:
            return Difference(name, "eager has it, the plan does not")
        start, allowed = (before or {}).get(name), (sensitivity or {}).get(name, EXACT)
        found = value_difference(
            name,
            wanted,
            plan[name],
            before=start,
            sensitivity=allowed,
            scale=scales.get(name),
            jumps=jumps,
            rounding=roundings.get(name, 0.0),
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
        beside=eager,
    )


def value_difference(
    name: str, eager: Any, plan: Any, *, before: Any = None, sensitivity: Sensitivity = EXACT,
    scale: Tensor | None = None, jumps: bool = False, rounding: float = 0.0,
) -> Difference | None:  # fmt: skip
    """Return the difference of one value, None where both agree. `before`: its value before the step, if it had one.

    Roundings are those of `scale`, a tensor of the value's shape, where that is larger than the value's own numbers.
    Where the step `jumps`, a small difference may be chance. `rounding`: by how much a number may differ where eager's
    own is rounding alone.
    """
    if not isinstance(eager, Tensor) or not isinstance(plan, Tensor):
        same = type(eager) is type(plan) and (eager == plan or (eager != eager and plan != plan))
        return None if same else Difference(name, f"eager has {_short(eager)}, the plan {_short(plan)}")
    if (eager.shape, eager.dtype) != (plan.shape, plan.dtype):
        return Difference(name, f"eager has {_short(eager)}, the plan {_short(plan)}")
    eager, plan = dense(eager).detach(), dense(plan).detach()
    if torch.equal(eager, plan):
        return None
    if not is_real_or_complex(eager):
        differing = int((eager != plan).sum())
        return Difference(name, f"{differing} of {eager.numel()} values differ ({_short(eager)})")
    return _rounded_difference(name, eager, plan, _start(eager, before), sensitivity, scale, jumps, rounding)


def excess(eager: Tensor, plan: Tensor, *, before: Any = None, scale: Tensor | None = None) -> Tensor:
    """Return by how much each number differs beyond what any value's may, below 0 where it differs by less.

    The arguments are those of `value_difference`, of floating-point or complex numbers and of one shape. A number that
    is infinite or NaN in one of both only is infinitely far beyond.
    """
    of = _Compared(dense(eager).detach(), dense(plan).detach(), _start(eager, before), scale)
    return (of.error - of.plain).nan_to_num(nan=math.inf, posinf=math.inf)


def _is_beyond(excess: Tensor, sensitivity: Sensitivity) -> bool:
    """Whether numbers differ beyond rounding, by how much each does beyond what any value may."""
    worst = float(excess.max())
    return worst > sensitivity.allowed or (worst > 0 and int((excess > 0).sum()) > most_beyond(sensitivity))


def most_beyond(sensitivity: Sensitivity) -> int:
    """How many numbers may differ by more than any value may."""
    return max(1, OFTEN * sensitivity.numbers)


class _Compared:
    """The numbers of one value of a plan's step beside eager's, and by how much they may differ in any case."""

    def __init__(self, eager: Tensor, plan: Tensor, before: Tensor | None, scale: Tensor | None) -> None:
        self.wanted, self.found = precise(eager), precise(plan)
        self.error = errors_of(self.wanted, self.found)
        self.before = None if before is None else precise(before)
        self.reference = self.wanted if self.before is None else self.wanted - self.before
        self.size = sizes_of(self.wanted)
        self.moved = None if before is None else sizes_of(self.reference)
        self.rounded = self.size if scale is None else torch.maximum(self.size, precise(scale))
        self.plain = plain_limits(eager.dtype, self.size, self.moved, self.rounded)

    @property
    def largest(self) -> Tensor:
        """Sizes of which differences are a share: those of the movements where the step changes the value."""
        return self.size if self.moved is None else self.moved


def _rounded_difference(
    name: str, eager: Tensor, plan: Tensor, before: Tensor | None, sensitivity: Sensitivity, scale: Tensor | None,
    jumps: bool, rounding: float,
) -> Difference | None:  # fmt: skip
    of = _Compared(eager, plan, before, scale)
    error = of.error
    if not all_finite(error):
        finite = error.isfinite()
        if bool((~finite & of.wanted.isfinite()).any()) or int((~finite).sum()) > OFTEN * sensitivity.infinities:
            return Difference(name, f"numbers that are not finite differ ({_short(eager)})")
        error = torch.where(finite, error, 0.0)
    eps, worst, largest = torch.finfo(eager.dtype).eps, float(error.max()), float(of.largest.max())
    if sensitivity.only_rounding and worst <= (rounding or _OTHER_ORDER * largest):
        return None
    if before is not None and sensitivity.steady and torch.equal(plan, before.to(plan.dtype)):
        movements = int((eager != before).sum())
        if movements >= max(_STILL, eager.numel() // 4):
            return Difference(name, f"did not move, eager's moved by up to {largest:.3g} ({_short(eager)})", worst)
    if _is_beyond(error - of.plain, sensitivity):
        beyond = int((error > of.plain).sum())
        numbers = f"numbers up to {largest:.3g}" if before is None else f"movements up to {largest:.3g}"
        more = f", in {beyond} numbers, of which {most_beyond(sensitivity)} may" if sensitivity.allowed else ""
        said = f"differs by up to {worst:.3g}, with {numbers}{more} ({_short(eager)})"
        most = of.plain + _CHANCE * largest_of(eager.dtype, of.size, of.moved)
        chance = jumps and bool((error <= most).all())
        norms = [torch.linalg.vector_norm(one.double()) for one in (error, of.largest)]
        return Difference(name, said, worst, may_be_chance=chance and bool(norms[0] <= _CHANCE * norms[1]))
    if of.before is None or not sensitivity.steady or eager.numel() < MANY:
        return None
    if surely_alike(worst, largest, eager.numel()):
        return None
    clear = max(_CLEAR, 2 * roundings_of(eager.dtype, of.moved)) * eps * of.rounded
    share = 0.0 if eps < HALF_PRECISION else SAME_WAY
    if int((of.reference.abs() > clear).sum()) >= eager.numel() // 2 and not moves_alike(
        of.reference, of.found - of.before, share=share
    ):
        reason = f"moved otherwise than eager's, which moved by up to {largest:.3g} ({_short(eager)})"
        return Difference(name, reason, worst)
    return None


def largest_roundings(
    eager: Mapping[str, Any], before: Mapping[str, Any], sensitivity: Mapping[str, Sensitivity]
) -> dict[str, float]:
    """Return for each value that is `only_rounding` the difference that any value of its kind may have in any case."""
    kinds = {name: kind for name, one in sensitivity.items() if one.only_rounding and (kind := _kind_of(name))}
    largest = dict.fromkeys(kinds.values(), 0.0)
    for name, value in eager.items() if kinds else ():
        kind = _kind_of(name)
        if kind in largest and isinstance(value, Tensor) and value.numel() and is_real_or_complex(value):
            start = _start(value, before.get(name))
            moved = precise(dense(value)) if start is None else precise(dense(value)) - precise(dense(start))
            largest[kind] = max(largest[kind], RELATIVE[real_type(value.dtype)] * float(sizes_of(moved).max()))
    return {name: largest[kind] for name, kind in kinds.items()}


def _kind_of(name: str) -> str | None:
    """What a value is, where all values of that kind are sums of about the same terms; None where they are not."""
    kind = name.rpartition(" ")[0]
    return kind if kind.startswith(("gradient", "optimizer's", "parameter", "result")) else None


def _start(eager: Tensor, before: Any) -> Tensor | None:
    """A value's numbers before the step, where it had as many."""
    return before if isinstance(before, Tensor) and before.shape == eager.shape else None


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return repr(value)[:60]
