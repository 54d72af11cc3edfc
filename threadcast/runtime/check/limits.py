"""How far numbers are from others, as a share of the largest number of their group."""

from __future__ import annotations

import math

import torch
from torch import Tensor

RELATIVE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 0.01, torch.bfloat16: 0.02}
"""By data type, how much a number may differ that another operator computes from the same ones, as a share of the
largest number of its tensor, or of its group there (`largest_of_groups`)."""
HALF_PRECISION = 5e-4
"""Smallest machine epsilon of the data types of 16 bits."""


def shares(wanted: Tensor, found: Tensor, *, gap: float) -> Tensor:
    """Return how far each number found is from the one wanted, as a share of the largest number of its group.

    Both are of one shape and of floating-point or complex numbers; the result is in float64. It is 0 where both are the
    same infinity or NaN, and infinite where only one is. `gap`: see `largest_of_groups`.
    """
    wanted, found = (dense(one).to(torch.complex128 if one.is_complex() else torch.float64) for one in (wanted, found))
    if not wanted.numel():
        return torch.zeros(wanted.shape, dtype=torch.float64)
    error = errors_of(wanted, found).nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(error > 0, error / largest_of_groups(sizes_of(wanted), gap), error)


def largest_of_groups(sizes: Tensor, share: float) -> Tensor:
    """Return for each size (finite) the largest size of its group, or one number where there is one group.

    Wide gaps separate groups: so many powers of two in a row without a size that what is below is less than `share` of
    what is above. Beside a mask of -1e30 other numbers are a group of their own. Zeros belong to the lowest group.
    """
    largest, smallest = sizes.max(), float(sizes.min())
    if smallest == 0.0:
        smallest = float(sizes.where(sizes > 0, math.inf).min())
    if smallest >= share * float(largest):
        return largest
    powers = torch.frexp(sizes.clamp(min=smallest)).exponent
    powers -= powers.min()
    present = torch.bincount(powers.flatten()).nonzero().flatten()
    last = torch.cat([present.diff() - 1 > -math.log2(share), torch.ones(1, dtype=torch.bool)])
    ends = present[last]
    if len(ends) == 1:
        return largest
    powers = powers.long()
    of_powers = sizes.new_zeros(int(ends[-1]) + 1).scatter_reduce_(0, powers.flatten(), sizes.flatten(), "amax")
    return of_powers[ends[torch.searchsorted(ends, torch.arange(len(of_powers)))]][powers]


def sizes_of(numbers: Tensor) -> Tensor:
    """Absolute values; 0 for numbers that are not finite."""
    sizes = numbers.abs()
    return sizes if all_finite(sizes) else sizes.nan_to_num_(nan=0.0, posinf=0.0)


def all_finite(sizes: Tensor) -> bool:
    """Whether none of these absolute values, at least one, is infinite or NaN."""
    return math.isfinite(float(sizes.max()))


def errors_of(wanted: Tensor, found: Tensor) -> Tensor:
    """Absolute differences; 0 where both numbers are the same infinity or both are NaN."""
    errors = (wanted - found).abs() if wanted.is_complex() else (wanted - found).abs_()
    if all_finite(errors):
        return errors
    same = (wanted == found) | (wanted.isnan() & found.isnan())
    return torch.where(same, 0.0, errors)


def dense(tensor: Tensor) -> Tensor:
    """Return the same numbers, zeros too where the tensor is sparse."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def is_real_or_complex(tensor: Tensor) -> bool:
    """Whether a tensor has numbers that may differ by roundings: no integers, and no types of 8 bits."""
    return real_type(tensor.dtype) in RELATIVE


def real_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the parts of a complex type, and other types as they are."""
    return {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}.get(
        dtype, dtype
    )


def precise(tensor: Tensor) -> Tensor:
    """A tensor in a type in which differences of numbers of its own type that are near each other are exact."""
    wide = {torch.float64: torch.float64, torch.complex128: torch.complex128}
    narrow = torch.complex64 if tensor.is_complex() else torch.float32
    return tensor.detach().to(wide.get(tensor.dtype, narrow))
