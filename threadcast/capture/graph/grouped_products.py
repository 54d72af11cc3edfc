"""What `_grouped_mm` returns, by which mixtures of experts multiply the tokens of each expert with its weights.

PyTorch's own rule for fake tensors is a GPU's, and refuses all types but bfloat16. On a CPU the operator multiplies
group by group in any type. Source: ATen/native/GroupedMMUtils.h.
"""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten

_ALIGNED_BYTES = 16
"""Rows of the result begin at multiples of this."""


def grouped_product(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Return an empty tensor like the result of `_grouped_mm(a, b, offs, bias, out_dtype)`, which has no other values.

    Matrices are (rows, columns) or (groups, rows, columns); `offs` (groups) are where groups of a shared side end.
    """
    if a.dim() == b.dim():
        groups = a.shape[0] if offs is None else offs.shape[0]
        shape = [groups, a.shape[-2], b.shape[-1]]
    else:
        shape = [a.shape[-2], b.shape[-1]]
    dtype = a.dtype if out_dtype is None else out_dtype
    numbers = _ALIGNED_BYTES // dtype.itemsize
    row = -(-shape[-1] // numbers) * numbers
    strides = [shape[1] * row, row, 1] if len(shape) == 3 else [row, 1]
    return a.new_empty_strided(shape, strides, dtype=dtype)
