"""Tensors with the strides that a caller expects, whatever computed them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def laid_out(value: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a tensor with exactly these strides, where no autograd looks at it.

    It is a view of itself where only sides of length 1 have others, and else a copy. Where a stride is 0, as in
    expanded tensors, the numbers are the same along that dimension.
    """
    strides = tuple(strides)
    if value.stride() == strides:
        return value
    if all(size == 1 or own == given for size, own, given in zip(value.shape, value.stride(), strides, strict=True)):
        return value.as_strided(value.shape, strides)
    copy = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in strides)
    copy[once].copy_(value[once])
    return copy


def overlaps_itself(value: Tensor) -> bool:
    """Return whether elements of a tensor share memory with one another in any other way than by `expand`."""
    extent = 1
    for stride, size in sorted((stride, size) for size, stride in zip(value.shape, value.stride(), strict=True)):
        if size > 1 and stride > 0:
            if stride < extent:
                return True
            extent += (size - 1) * stride
    return False
