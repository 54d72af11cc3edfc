"""Whether a value of a step can show that a plan computes other numbers than eager PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tells(value: Any, before: Any = None) -> bool:
    """Return whether wrong numbers would show in a value, or in how far it moved from what was there `before`.

    They would not where none of its numbers is finite, or all are the same: zeros hide a wrong factor, and equal
    numbers a wrong order. A number alone must not be 0. Values other than floating-point or complex tensors tell.
    """
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.numel():
        return True
    if not (value.is_floating_point() or value.is_complex()) or value.element_size() < 2:
        return True
    numbers = value.detach()
    if isinstance(before, Tensor) and before.shape == value.shape:
        numbers = numbers - before
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj())
    alone, (low, high) = numbers.numel() == 1, numbers.aminmax()
    if not bool(low.isfinite() & high.isfinite()):
        numbers = numbers[numbers.isfinite()]
        if not numbers.numel():
            return False
        low, high = numbers.aminmax()
    return bool(low != 0) if alone else bool(low < high)
