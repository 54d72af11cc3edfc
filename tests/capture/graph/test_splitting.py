"""Calls in place of others are used for types for which they give the same, and only for these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.capture.graph.capture import capture_training
from threadcast.capture.graph.optimizers import NoUpdate
from threadcast.capture.graph.program import Call
from threadcast.capture.graph.rewriting import parts_of
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten
CONVOLUTION, LAYER_NORM = aten.convolution_backward.default, aten.native_layer_norm_backward.default
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def parts(arguments: tuple[Any, ...], dtype: torch.dtype, dimensions: int = 2) -> list[tuple[Call, dict[int, Any]]]:
    """The calls in place of one that computes three gradients, each with its gradients: as which of its results."""
    first = TensorSpec((2, 6, *[5] * dimensions), str(dtype).removeprefix("torch."))
    target = CONVOLUTION if len(arguments) == 11 else LAYER_NORM
    calls, held = parts_of(Call(target, arguments, {}, "backward", "x", [first] * 3), first, 0)
    return [(call, {i: ref.item for i, ref in held.items() if ref.slot == at}) for at, call in enumerate(calls)]


def check(target: Any, arguments: tuple[Any, ...], dtype: torch.dtype, dimensions: int = 2) -> None:
    """Compare the gradients of a split call with those of the whole one, up to rounding at their largest value."""
    wanted, split = target(*arguments), parts(arguments, dtype, dimensions)
    assert len(split) == (3 if target is CONVOLUTION else 2)
    assert sorted(i for _, gradients in split for i in gradients) == [0, 1, 2]
    eps = torch.finfo(dtype).eps
    for call, gradients in split:
        result = call.target(*call.args, **call.kwargs)
        for i, item in gradients.items():
            found = result if item is None else result[item]
            bound = (4 if eps > 1e-4 else 32) * eps * wanted[i].abs().max().item()
            torch.testing.assert_close(found, wanted[i], rtol=0, atol=bound)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_of_a_split_convolution_are_those_of_the_whole(
    dtype: torch.dtype, dimensions: int, transposed: bool
) -> None:
    torch.manual_seed(0)
    ones = [1] * dimensions
    for side in (4, 7):
        x = torch.randn(2, 4, *[side] * dimensions).to(dtype)
        weight = torch.randn(*((4, 3) if transposed else (6, 2)), *[3] * dimensions).to(dtype)
        settings = ones, ones, ones, transposed, [0] * dimensions, 2
        gradient = torch.randn(aten.convolution.default(x, weight, None, *settings).shape).to(dtype)
        check(CONVOLUTION, (gradient, x, weight, [6], *settings, [True, True, True]), dtype, dimensions)


@pytest.mark.parametrize(("shape", "normalised"), [((3, 5), [5]), ((2, 3, 17), [17]), ((2, 4, 33), [4, 33])])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_of_a_split_layer_norm_are_those_of_the_whole(
    dtype: torch.dtype, shape: tuple[int, ...], normalised: list[int]
) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(size).to(dtype) for size in (shape, normalised, normalised))
    result, mean, rstd = aten.native_layer_norm.default(x, normalised, weight, bias, 1e-5)
    gradient = torch.randn(result.shape).to(dtype)
    check(LAYER_NORM, (gradient, x, normalised, mean, rstd, weight, bias, [True, True, True]), dtype)


def test_types_of_numbers_that_are_not_real_are_left_whole() -> None:
    assert len(parts((0, 1, [5], 2, 3, 4, 5, [True, True, True]), torch.int64)) == 1
    assert len(parts((0, 1, 2, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, [True] * 3), torch.complex64)) == 1


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
