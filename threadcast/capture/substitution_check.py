"""Checks that the calls which a graph has in place of others give the same results.

The values are compared on random tensors, once for each element type in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_ULPS, _COARSE_ULPS = 32, 4
"""Largest difference that is accepted, in rounding errors of the type at the largest result.

The sums here have few numbers. Types that round coarsely add in float32, so that only the results are rounded; for them
`_COARSE_ULPS` holds.
"""
_COARSE = 1e-4
"""Rounding error (of numbers near 1) from which a type is coarse."""


@cache
def products_add(dtype: torch.dtype) -> bool:
    """Whether `addmm_` adds a product of matrices as `mm` and `add` do.

    Types that round coarsely do not: `mm` rounds the product, which may be infinite then, where the sum is not.
    """
    if not dtype.is_floating_point or torch.finfo(dtype).eps > _COARSE:
        return False
    generator = torch.Generator().manual_seed(0)
    try:
        for m, k, n in ((1, 1, 1), (3, 5, 7), (16, 16, 16), (33, 65, 17), (2, 0, 3)):
            a, b, c, d = (_random(size, dtype, generator) for size in ((m, k), (k, n), (m, k), (k, n)))
            total = torch.mm(a, b)
            expected = total + torch.mm(c, d)
            largest = torch.mm(a.abs(), b.abs()) + torch.mm(c.abs(), d.abs())
            if not _alike(aten.addmm_.default(total, c, d), expected, largest):
                return False
    except RuntimeError:  # the type has no such operator
        return False
    return True


@cache
def splits_convolution(dtype: torch.dtype, dimensions: int, transposed: bool, split: Callable[..., Any]) -> bool:
    """Whether the parts of a convolution's backward pass give the same gradients as the unsplit operator."""
    generator = torch.Generator().manual_seed(0)
    weight_shape = (4, 3) if transposed else (6, 2)
    ones = [1] * dimensions
    try:
        for side in (4, 7):
            x = _random((2, 4, *[side] * dimensions), dtype, generator)
            weight = _random((*weight_shape, *[3] * dimensions), dtype, generator)
            settings = (ones, ones, ones, transposed, [0] * dimensions, 2)
            result = aten.convolution.default(x, weight, None, *settings)
            gradient = _random(result.shape, dtype, generator)
            whole = gradient, x, weight, [6], *settings, [True, True, True]
            if not _split_alike(aten.convolution_backward.default, whole, split):
                return False
    except RuntimeError:
        return False
    return True


@cache
def splits_layer_norm(dtype: torch.dtype, split: Callable[..., Any]) -> bool:
    """Whether the parts of layer normalisation's backward pass give the same gradients as the unsplit operator."""
    generator = torch.Generator().manual_seed(0)
    try:
        for shape, normalised in (((3, 5), [5]), ((2, 3, 17), [17]), ((2, 4, 33), [4, 33])):
            x, weight, bias = (_random(size, dtype, generator) for size in (shape, normalised, normalised))
            result, mean, rstd = aten.native_layer_norm.default(x, normalised, weight, bias, 1e-5)
            gradient = _random(result.shape, dtype, generator)
            whole = gradient, x, normalised, mean, rstd, weight, bias, [True, True, True]
            if not _split_alike(aten.native_layer_norm_backward.default, whole, split):
                return False
    except RuntimeError:
        return False
    return True


def _split_alike(target: Callable[..., Any], arguments: tuple[Any, ...], split: Callable[..., Any]) -> bool:
    expected = target(*arguments)
    for part in split(arguments):
        result = part.target(*part.args, **part.kwargs)
        for member in part.members:
            found, wanted = result if part.single is not None else result[member], expected[member]
            if not _alike(found, wanted, wanted.abs().max()):
                return False
    return True


def _alike(found: Tensor, wanted: Tensor, largest: Tensor) -> bool:
    same_form = (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    eps = torch.finfo(wanted.dtype).eps
    bound = (_COARSE_ULPS if eps > _COARSE else _ULPS) * eps * largest.double()
    return same_form and bool(((found - wanted).abs().double() <= bound).all())


def _random(size: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(tuple(size), dtype=wide, generator=generator).to(dtype)
