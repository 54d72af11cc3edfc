"""The ends of a tensor's numbers are found in every type and order in memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from threadcast.runtime.backends.least_and_most import ends

_MANY = torch.linspace(-3, 5, 3 * 40_000).view(3, 40_000)


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (torch.tensor([3, -(2**63), 2**63 - 1]), -(2**63), 2**63 - 1),
        (torch.tensor([0, 2**64 - 1], dtype=torch.uint64), 0, 2**64 - 1),
        (torch.tensor([1.5, -math.inf]), -math.inf, 1.5), (torch.tensor([1 + 7j, -2 - 1j]).conj(), -7.0, 1.0),
        (torch.tensor([1 - 2j]).conj().imag, 2.0, 2.0), (_MANY.t(), -3.0, 5.0), (_MANY.bfloat16(), -3.0, 5.0),
        (_MANY.half()[:, ::3], -3.0, 5.0), (torch.ones(2).to(torch.float8_e4m3fn), 1.0, 1.0),
    ],
)  # fmt: skip
def test_the_least_and_the_largest_number_are_found(value: Tensor, least: float, most: float) -> None:
    found = ends(value)
    assert found == (least, pytest.approx(most, abs=2e-2 if value.dtype is torch.float16 else 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_nan_is_found_wherever_it_is_and_none_is_told_of_an_empty_tensor(dtype: torch.dtype) -> None:
    value = torch.ones(70_000, dtype=dtype)
    value[40_000] = math.nan
    assert all(map(math.isnan, (*ends(value), *ends(value[:0]))))
