"""Compares the values of a plan's step with those of eager PyTorch, and finds those that differ beyond rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

RELATIVE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""By data type, how much a number may differ, as a share of the largest number of its tensor. For values that the step
changes, as a share of the largest change. Sums of a few thousand terms in another order differ by about 1e-6 in
float32; networks of 20 to 50 layers enlarge that a hundredfold. PyTorch's own optimizers differ from each other by
several roundings a step in bfloat16, where one rounding is 0.4 %."""
ROUNDINGS = 4
"""Roundings (machine epsilons times the number itself) by which each number may differ in addition."""
SENSITIVITY = 10
"""A plan may differ by this many times the change of eager's own result when the inputs change by one rounding."""
NUDGES = 3
"""Eager steps with changed inputs that measure this change: where terms cancel out, it varies between such steps."""
_STILL = 4
"""A tensor that a plan left unchanged is wrong if eager changed at least this many of its numbers, and a quarter."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value of a plan's step that differs from eager's: its `name`, and `reason`, the difference in words."""

    name: str
    reason: str
    largest: float = float("inf")
    """The largest difference between two numbers; infinite where something else than numbers differs."""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def first_difference(
    eager: Mapping[str, Any],
    plan: Mapping[str, Any],
    *,
    before: Mapping[str, Any] | None = None,
    sensitivity: Mapping[str, float] | None = None,
) -> Difference | None:
    """Return the first value in which `plan` differs from `eager` beyond rounding; None where all values agree.

    Both map names to tensors, numbers and other constants. `before` holds values from before the step (parameters,
    buffers, optimizer state); differences in these are judged relative to how much eager changed them. `sensitivity`
    holds the further difference that is allowed for each value, as `sensitivities` returns it.
    """
    for name, wanted in eager.items():
        if name not in plan:
            return Difference(name, "eager has it, the plan does not")
        start, allowed = (before or {}).get(name), (sensitivity or {}).get(name, 0.0)
        found = value_difference(name, wanted, plan[name], before=start, sensitivity=allowed)
        if found is not None:
            return found
    extra = next((name for name in plan if name not in eager), None)
    return Difference(extra, "the plan has it, eager does not") if extra is not None else None


def value_difference(
    name: str, eager: Any, plan: Any, *, before: Any = None, sensitivity: float = 0.0
) -> Difference | None:
    """Return the difference of one value, None where both agree. `before`: its value before the step, if it had one."""
    if not isinstance(eager, Tensor) or not isinstance(plan, Tensor):
        same = type(eager) is type(plan) and (eager == plan or (eager != eager and plan != plan))
        return None if same else Difference(name, f"eager has {_short(eager)}, the plan {_short(plan)}")
    if (eager.shape, eager.dtype) != (plan.shape, plan.dtype):
        return Difference(name, f"eager has {_short(eager)}, the plan {_short(plan)}")
    if eager.layout is not torch.strided or plan.layout is not torch.strided:
        eager, plan = eager.to_dense(), plan.to_dense()
    eager, plan = eager.detach(), plan.detach()
    if torch.equal(eager, plan):
        return None
    if not _is_real_or_complex(eager):
        differing = int((eager != plan).sum())
        return Difference(name, f"{differing} of {eager.numel()} values differ ({_short(eager)})")
    moved = before if isinstance(before, Tensor) and before.shape == eager.shape else None
    return _rounded_difference(name, eager, plan, moved, sensitivity)


def sensitivities(eager: Mapping[str, Any], *changed: Mapping[str, Any]) -> dict[str, float]:
    """Return how much a plan may differ in each value of `eager`, because eager itself is sensitive to rounding.

    That is `SENSITIVITY` times the largest difference of `eager` from `changed`, the values of the same step on inputs
    changed by one rounding (`nudged`).
    """
    found: dict[str, float] = {}
    for name, value in eager.items():
        if not isinstance(value, Tensor) or not _is_real_or_complex(value) or not value.numel():
            continue
        for other in (values.get(name) for values in changed):
            if isinstance(other, Tensor) and value.shape == other.shape:
                error = _errors(_precise(value), _precise(other)).nan_to_num(nan=torch.inf)
                found[name] = max(found.get(name, 0.0), SENSITIVITY * float(error.max()))
    return found


def nudged(tensor: Tensor, *, seed: int = 0) -> Tensor:
    """Return a copy whose numbers are larger or smaller by one rounding, at random by `seed`.

    Tensors of integers or booleans, and sparse ones, are copied unchanged.
    """
    if not _is_real_or_complex(tensor) or tensor.layout is not torch.strided:
        return tensor.detach().clone()
    coin = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, tensor.shape, generator=coin).double() * 2 - 1
    return (_precise(tensor) * (1 + signs * torch.finfo(tensor.dtype).eps)).to(tensor.dtype)


def _rounded_difference(
    name: str, eager: Tensor, plan: Tensor, before: Tensor | None, sensitivity: float
) -> Difference | None:
    wanted, found = _precise(eager), _precise(plan)
    error = _errors(wanted, found)
    if not bool(error.isfinite().all()):
        if sensitivity == torch.inf:
            return None
        return Difference(name, f"numbers that are not finite differ ({_short(eager)})")
    reference = wanted if before is None else wanted - _precise(before)
    finite = reference.abs()[reference.isfinite()]
    largest = float(finite.max()) if finite.numel() else 0.0
    eps = torch.finfo(eager.dtype).eps
    size = wanted.abs().nan_to_num(nan=0.0, posinf=0.0)
    allowed = RELATIVE[_real(eager.dtype)] * largest + ROUNDINGS * eps * size + sensitivity
    worst = float(error.max())
    if bool((error > allowed).any()):
        of = f"numbers up to {largest:.3g}" if before is None else f"movements up to {largest:.3g}"
        return Difference(name, f"differs by up to {worst:.3g}, with {of} ({_short(eager)})", worst)
    if before is not None and sensitivity == 0.0 and torch.equal(plan, before.to(plan.dtype)):
        moved = int((eager != before).sum())
        if moved >= max(_STILL, eager.numel() // 4):
            return Difference(name, f"did not move, eager's moved by up to {largest:.3g} ({_short(eager)})", worst)
    return None


def _errors(wanted: Tensor, found: Tensor) -> Tensor:
    """Absolute differences; 0 where both numbers are the same infinity or both are NaN."""
    same = (wanted == found) | (wanted.isnan() & found.isnan())
    return torch.where(same, 0.0, (wanted - found).abs())


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
