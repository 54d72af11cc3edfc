"""Compares values bit by bit, and by roundings those that stand for a value of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from threadcast.runtime.check.limits import (
    HALF_PRECISION,
    RELATIVE,
    dense,
    errors_of,
    is_real_or_complex,
    largest_of_groups,
    precise,
    real_type,
    sizes_of,
)

_ROUNDINGS = 4
"""Roundings of a number itself by which an operator's results may differ."""
_UPDATE_ROUNDINGS = 16
"""The same for an update, beside as many roundings of the largest movement of its tensor."""
_ROUGHLY = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.05}
"""By data type, share of a tensor's largest number by which results may differ of which each operator was judged by
itself, or that another library computes."""
_MOVED = 0.02
"""The same of the largest movement of what the step changes."""

Room = Callable[[Tensor], Tensor | float]
"""By how much each number of PyTorch's may differ."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs from PyTorch's: its `name`, and `reason`, the difference in words."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def first_difference(
    wanted: Mapping[str, Any], found: Mapping[str, Any], room: Callable[[str], Room | None] = lambda _: None
) -> Difference | None:
    """Return the first value in which `found` has other bits than `wanted`, or differs by more than its `room`.

    `room` takes a value's name; None: bit for bit. Both map names to tensors, numbers and other constants.
    """
    for name, value in wanted.items():
        if name not in found:
            return Difference(name, "PyTorch has it, the plan does not")
        if (difference := value_difference(name, value, found[name], room(name))) is not None:
            return difference
    extra = next((name for name in found if name not in wanted), None)
    return None if extra is None else Difference(extra, "the plan has it, PyTorch does not")


def value_difference(name: str, wanted: Any, found: Any, room: Room | None = None) -> Difference | None:
    """Return how a value differs from the one `wanted`; None where it has its bits, or is within `room` of it.

    NaN is NaN whatever its bits are; infinities, integers and other values have no room.
    """
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor):
        same = type(wanted) is type(found) and (wanted == found or (wanted != wanted and found != found))
        return None if same else Difference(name, f"PyTorch has {_short(wanted)}, the plan {_short(found)}")
    if (wanted.shape, wanted.dtype) != (found.shape, found.dtype):
        return Difference(name, f"PyTorch has {_short(wanted)}, the plan {_short(found)}")
    wanted, found = dense(wanted).detach(), dense(found).detach()
    if torch.equal(wanted, found):
        return None
    other = (wanted != found) & ~((wanted != wanted) & (found != found))
    count = int(other.sum())
    if not count:
        return None
    if not is_real_or_complex(wanted):
        return Difference(name, f"differs in {count} of {wanted.numel()} values ({_short(wanted)})")
    errors = errors_of(precise(wanted), precise(found))
    if room is not None and bool((errors <= room(wanted)).all()):
        return None
    numbers = f"numbers up to {float(sizes_of(precise(wanted)).max()):.3g}"
    said = f"differs by up to {float(errors.max()):.3g} in {count} of {wanted.numel()} {numbers} ({_short(wanted)})"
    return Difference(name, said)


def operator_room(wanted: Tensor) -> Tensor:
    """By how much numbers may differ that another operator computes from the same ones."""
    sizes, dtype = sizes_of(precise(wanted)), real_type(wanted.dtype)
    return largest_of_groups(sizes, RELATIVE[dtype]) * RELATIVE[dtype] + _ROUNDINGS * torch.finfo(dtype).eps * sizes


def update_room(before: Any) -> Room:
    """By how much an updated value may differ, which was `before` the step; in half precision by nothing."""

    def room(wanted: Tensor) -> Tensor | float:
        eps = torch.finfo(wanted.dtype).eps
        if eps > HALF_PRECISION:
            return 0.0
        sizes, moved = sizes_of(precise(wanted)), _movements(wanted, before)
        return _UPDATE_ROUNDINGS * eps * (torch.maximum(sizes, (sizes - moved).abs()) + moved.max())

    return room


def roughly(before: Any = None) -> Room:
    """By how much a value may differ of which each operator was judged, and which was `before` the step, if at all."""

    def room(wanted: Tensor) -> Tensor | float:
        if isinstance(before, Tensor):
            return update_room(before)(wanted) + _MOVED * _movements(wanted, before).max()
        return _ROUGHLY[real_type(wanted.dtype)] * sizes_of(precise(wanted)).max()

    return room


def _movements(wanted: Tensor, before: Any) -> Tensor:
    known = isinstance(before, Tensor) and before.shape == wanted.shape
    return sizes_of(precise(wanted) - precise(dense(before))) if known else sizes_of(precise(wanted))


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return repr(value)[:60]
