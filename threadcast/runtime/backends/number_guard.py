"""Tells which calls a backend computes as PyTorch does: those with numbers of the kind that it was checked with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threadcast.runtime.backends.program_file import in_memory_order

_ALONE = 32768
"""Most numbers of half precision that PyTorch looks at in the calling thread alone. Its other threads would wait for
more work for a while after a look, on the cores that a backend's threads need. NumPy has no such threads."""
_HALF = torch.float16, torch.bfloat16


def ends(value: Tensor) -> tuple[Any, Any]:
    """Return the least and the largest number, of complex ones among their parts: integers of integers.

    NaN where one is NaN, or there is none.
    """
    if not value.numel():
        return math.nan, math.nan
    value = value.detach()
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    if value.dtype not in _HALF:
        numbers = (value.float() if value.is_floating_point() and value.itemsize == 1 else value).resolve_neg().numpy()
        return numbers.min().item(), numbers.max().item()
    value = in_memory_order(value)  # which takes a fifth of the time in channels last
    parts = [value] if value.numel() <= _ALONE or not value.is_contiguous() else torch.split(value.view(-1), _ALONE)
    found = [torch.aminmax(part) for part in parts]
    least, most = (torch.stack(of_parts) if len(found) > 1 else of_parts[0] for of_parts in zip(*found, strict=True))
    return float(least.amin()), float(most.amax())


class Range(NamedTuple):
    """The least and the largest integer of a value."""

    low: int
    high: int

    def within(self, low: int, high: int) -> bool:
        """Whether no integer is below `low` or above `high`."""
        return low <= self.low and self.high <= high


def range_of(value: Tensor) -> Range:
    """The range of the integers in a tensor; 0 to 0 where it is empty."""
    return Range(*ends(value)) if value.numel() else Range(0, 0)


class NumberGuard:
    """Looks at the numbers of a call's arguments, or of its results; `example` are those of the checked call.

    NaN is never allowed: ReLU makes 0 of it in oneDNN and OpenVINO, `sign`, `argmax`, `topk` and attention treat it in
    other ways. Infinities are, in tensors that have them in the example, such as masks. `integers` are the ranges of
    integers, where there is one for a tensor.
    """

    def __init__(self, example: Sequence[Tensor], integers: Sequence[Range | None] = ()) -> None:
        self._integers = [(at, one) for at, one in enumerate(integers) if one is not None and example[at].numel()]
        self._floats = [
            (at, not all(map(math.isfinite, ends(value))))
            for at, value in enumerate(example)
            if value.numel() and (value.is_floating_point() or value.is_complex())
        ]
        """Positions of other numbers, each with whether the example has infinities there."""

    def allows(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether these tensors have such numbers. It reads each number once."""
        for at, integers in self._integers:
            if not range_of(tensors[at]).within(*integers):
                return False
        return all(
            all(math.isfinite(one) or (infinite and not math.isnan(one)) for one in ends(tensors[at]))
            for at, infinite in self._floats
        )
