"""Values are compared bit by bit; what stands for them may differ by roundings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from threadcast.runtime.check.bits import first_difference, operator_room, roughly, update_room, value_difference

INF, NAN = float("inf"), float("nan")
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]


def _numbers(dtype: torch.dtype) -> Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_one_rounding_is_a_difference_but_for_what_stands_for_an_operator(dtype: torch.dtype) -> None:
    wanted = _numbers(dtype)
    found = wanted * (1 + torch.finfo(dtype).eps)
    assert value_difference("x", wanted, wanted.clone()) is None
    assert value_difference("x", wanted, found) is not None
    assert value_difference("x", wanted, found, operator_room) is None
    found[7] += 0.5
    assert value_difference("x", wanted, found, operator_room) is not None


def test_nan_is_nan_and_what_is_not_finite_must_be_the_same() -> None:
    wanted = torch.tensor([1.0, NAN, INF, -INF])
    assert value_difference("x", wanted, torch.tensor([1.0, -NAN, INF, -INF])) is None
    for i, other in ((1, 0.0), (2, NAN), (3, INF), (0, NAN), (0, INF)):
        found = wanted.clone()
        found[i] = other
        assert value_difference("x", wanted, found, operator_room) is not None
        assert value_difference("x", wanted, found, roughly()) is not None


@pytest.mark.parametrize(("wanted", "found"), [
    (torch.arange(3), torch.arange(3) + 1), (torch.ones(2), torch.ones(3)), (torch.ones(2), torch.ones(2).double()),
    (torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)), (1, 1.0), (1, 2), ("a", None),
    (torch.eye(3).to_sparse(), 2 * torch.eye(3).to_sparse()),
], ids=str)  # fmt: skip
def test_integers_shapes_types_and_other_values_have_no_room(wanted: Any, found: Any) -> None:
    assert value_difference("x", wanted, wanted) is None
    assert value_difference("x", wanted, found, operator_room) is not None


def test_names_that_only_one_has_are_differences() -> None:
    assert str(first_difference({"a": 1}, {})) == "a: PyTorch has it, the plan does not"
    assert str(first_difference({}, {"a": 1})) == "a: the plan has it, PyTorch does not"


def test_beside_a_mask_of_a_large_number_the_others_have_their_own_room() -> None:
    wanted = torch.tensor([-1e30, 1.0, 2.0, -1e30])
    assert value_difference("x", wanted, torch.tensor([-1e30, 1.0, 2.001, -1e30]), operator_room) is not None


@pytest.mark.parametrize("share", [1.001, 0.0, -1.0, 2.0])
def test_an_update_that_is_another_movement_is_found(share: float) -> None:
    before, movement = _numbers(torch.float32), 1e-2 * _numbers(torch.float32).flip(0)
    wanted = before + movement
    rounded = wanted * (1 + torch.finfo(torch.float32).eps)
    assert value_difference("x", wanted, rounded, update_room(before)) is None
    assert value_difference("x", wanted, before + share * movement, update_room(before)) is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_updates_in_half_precision_have_no_room(dtype: torch.dtype) -> None:
    before = _numbers(dtype)
    assert value_difference("x", before * 2, before * 2, update_room(before)) is None
    assert value_difference("x", before, before * (1 + torch.finfo(dtype).eps), update_room(before)) is not None
