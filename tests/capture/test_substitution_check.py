"""Calls in place of others are used for types for which they give the same, and only for these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.capture import substitution_check
from threadcast.capture.capture import capture_forward, capture_training
from threadcast.capture.optimizers import NoUpdate
from threadcast.capture.splitting import Part, split_call
from threadcast.capture.substitution_check import products_add, splits_convolution, splits_layer_norm
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten
CONVOLUTION, LAYER_NORM = aten.convolution_backward.default, aten.native_layer_norm_backward.default
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def checked_anew() -> Iterator[None]:
    checks = products_add, splits_convolution, splits_layer_norm
    for check in checks:
        check.cache_clear()
    yield
    for check in checks:
        check.cache_clear()


def parts(arguments: tuple[Any, ...], dtype: torch.dtype = torch.float32) -> list[Part]:
    first = TensorSpec((2, 6, 5, 5), str(dtype).removeprefix("torch."))
    return split_call(CONVOLUTION if len(arguments) == 11 else LAYER_NORM, arguments, {}, first)


def convolution(transposed: bool = False) -> tuple[Any, ...]:
    return 0, 1, 2, [6], [1, 1], [1, 1], [1, 1], transposed, [0, 0], 2, [True, True, True]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_types_of_networks_are_split(dtype: torch.dtype) -> None:
    assert len(parts(convolution(), dtype)) == len(parts(convolution(transposed=True), dtype)) == 3
    assert len(parts((0, 1, [5], 2, 3, 4, 5, [True, True, True]), dtype)) == 2


def test_products_are_summed_where_rounding_each_first_makes_no_difference() -> None:
    """In float16 a product of 70000 is infinite before -60000 is added to it."""
    assert products_add(torch.float32)
    assert products_add(torch.float64)
    assert not products_add(torch.float16)
    assert not products_add(torch.bfloat16)


def test_types_that_an_operator_does_not_have_are_left_whole() -> None:
    assert parts((0, 1, [5], 2, 3, 4, 5, [True, True, True]), torch.int64) == []
    assert not products_add(torch.bool)


def test_a_wrong_part_is_not_used() -> None:
    def wrong(arguments: tuple[Any, ...]) -> list[Part]:
        sums = Part(aten.sum.dim_IntList, (arguments[0], [0, 2]), members=(2,), single=2)
        return [sums]

    assert not splits_convolution(torch.float32, 2, False, wrong)


def test_a_convolution_with_one_stride_for_all_dimensions_is_left_whole() -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.rand(3, 2, 3, 3)), nn.Parameter(torch.rand(3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.convolution(x, self.weight, self.bias, [1], [0], [1], False, [0], 1)

    model, x = Convolution(), torch.rand(2, 2, 5, 5)
    captured = capture_training(model, lambda result, _: result.square().sum(), NoUpdate(), (x,), None)
    model(x).square().sum().backward()
    wanted = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    captured.run((x,), None)
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], wanted)


def test_products_that_do_not_add_are_left_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        class addmm_:  # noqa: N801 - as the operator is called
            default: Callable[..., Tensor] = staticmethod(lambda total, a, b: total)

    def function(a: Tensor, b: Tensor) -> Tensor:
        return a @ b + b @ a

    monkeypatch.setattr(substitution_check, "aten", Other)
    found = capture_forward(function, torch.ones(3, 3), torch.ones(3, 3))
    assert "aten.addmm_.default" not in {str(node.target) for node in found.program.nodes}
