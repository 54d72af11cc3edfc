"""A guard allows numbers of the kind that a backend was checked with."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from threadcast.runtime.backends.number_guard import NumberGuard, Range, ends


def with_number(value: Tensor, number: float) -> Tensor:
    changed = value.clone()
    changed.view(-1)[-2] = number
    return changed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_numbers_that_are_not_finite_are_not_allowed(dtype: torch.dtype) -> None:
    example = torch.ones(3, 5, dtype=dtype)
    guard = NumberGuard([example, torch.ones(2, dtype=torch.bool)])
    others = [torch.zeros(2, dtype=torch.bool)]
    assert guard.allows([example * 7, *others])
    for number in (math.nan, math.inf, -math.inf):
        assert not guard.allows([with_number(example, number), *others])


def test_infinities_are_allowed_where_the_example_has_them() -> None:
    mask = with_number(torch.zeros(2, 4), -math.inf)
    guard = NumberGuard([mask, torch.ones(3)])
    assert guard.allows([mask.flip(1), torch.ones(3)])
    assert not guard.allows([mask, with_number(torch.ones(3), math.inf)])
    assert not guard.allows([with_number(mask, math.nan), torch.ones(3)])


def test_integers_are_allowed_within_their_range() -> None:
    guard = NumberGuard([torch.tensor([1, 2]), torch.empty(0, dtype=torch.int64)], [Range(0, 9), Range(0, 9)])
    empty = torch.empty(0, dtype=torch.int64)
    assert guard.allows([torch.tensor([0, 9]), empty])
    assert not guard.allows([torch.tensor([0, 10]), empty])
    assert not guard.allows([torch.tensor([-1, 3]), empty])


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
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_nan_is_found_wherever_it_is_and_none_is_told_of_an_empty_tensor(
    dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    for row in (0, 150, 199):
        value = torch.ones(1, 3, 200, 200, dtype=dtype).to(memory_format=memory_format)
        value[0, 2, row, 5] = math.nan
        assert all(map(math.isnan, (*ends(value), *ends(value[:0]))))
        assert not NumberGuard([torch.ones(1)]).allows([value])
