"""Tensors with given strides, and such as share memory with themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from threadcast.runtime.plans.strides import laid_out, overlaps_itself


def test_a_tensor_with_the_strides_is_itself() -> None:
    value = torch.randn(2, 3).t()
    assert laid_out(value, (1, 3)) is value


@pytest.mark.parametrize("strides", [(60, 20, 5, 1), (60, 1, 15, 3), (1, 2, 6, 24), (120, 40, 10, 2)])
def test_a_copy_has_the_numbers_and_is_no_view(strides: tuple[int, ...]) -> None:
    value = torch.randn(2, 4, 3, 5).transpose(1, 2)
    with torch.no_grad():
        found = laid_out(value, strides)
    assert found.stride() == strides
    assert torch.equal(found, value)
    assert not found._is_view()


def test_expanded_tensors_keep_their_strides() -> None:
    once = torch.randn(2, 3, 1, 1)
    found = laid_out(once.expand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), (3, 1, 0, 0))
    assert found.stride() == (3, 1, 0, 0)
    assert not found._is_view()
    assert torch.equal(found, once.expand(2, 3, 4, 5))


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1, 4)])
def test_small_and_empty_tensors_have_the_strides(shape: tuple[int, ...]) -> None:
    strides = tuple(range(7, 7 + len(shape)))
    found = laid_out(torch.ones(shape), strides)
    assert found.stride() == strides
    assert torch.equal(found, torch.ones(shape))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (torch.randn(3, 4), False),
        (torch.randn(3, 4).t(), False),
        (torch.randn(3, 1).expand(3, 4), False),
        (torch.randn(8)[::2], False),
        (torch.randn(8).as_strided((3, 4), (2, 1)), True),
        (torch.randn(8).as_strided((2, 2), (1, 1)), True),
        (torch.randn(1).expand(2, 2), False),
        (torch.randn(0, 3), False),
    ],
)
def test_elements_that_share_memory_are_found(value: Tensor, wanted: bool) -> None:
    assert overlaps_itself(value) is wanted
