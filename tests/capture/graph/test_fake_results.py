"""What is told of operators at once while a call is recorded: shapes, types and strides as PyTorch's fake tensors have.

Where these differ from what the operator returns, as for a normalisation's gradient, it is told as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from threadcast.capture.graph.fake_results import _AT_ONCE, told_at_once

aten = torch.ops.aten
SHAPES = (
    (2, 3, 4, 5), (1, 3, 4, 4), (2, 1, 4, 4), (2, 3, 1, 1), (1, 1, 1, 2), (4, 3), (2, 3, 5), (2, 1, 5), (2, 3, 4, 4, 2),
    (1, 1, 1, 2, 1), (0, 3, 4, 4),
)  # fmt: skip
ARGUMENTS: dict[OpOverload, list[Any]] = {
    aten.add.Tensor: [1.5], aten.sub.Tensor: [2], aten.mul.Tensor: [0.5], aten.div.Tensor: [2],
    aten.pow.Tensor_Scalar: [2], aten.threshold_backward.default: ["again", 0], aten.sum.dim_IntList: [[1]],
    aten.mean.dim: [[-1], True], aten.slice.Tensor: [1, 0, 2], aten.select.int: [1, 0], aten.transpose.int: [0, 1],
    aten.unsqueeze.default: [1], aten.split.Tensor: [1, 1], aten.sigmoid_backward.default: ["again"],
    aten.tanh_backward.default: ["again"], aten.gelu_backward.default: ["again"], aten.view.default: [[-1]],
}  # fmt: skip
"""Those after the first tensor; "again" is one that lies otherwise."""


def laid_out(shape: tuple[int, ...]) -> Iterator[Tensor]:
    yield torch.ones(shape)
    if len(shape) > 2:  # channels last, also where sides of 1 hide it
        yield torch.ones(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
    yield torch.ones(shape[::-1]).permute(*range(len(shape))[::-1])
    yield torch.ones(shape[0], 2 * shape[1], *shape[2:])[:, ::2]
    yield torch.ones(shape[0], shape[1], *[1] * (len(shape) - 2)).expand(shape)


def calls(operator: OpOverload) -> Iterator[list[Any]]:
    if operator in (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.t.default):
        sides = ((4, 2), (2, 4)) if operator is not aten.bmm.default else ((2, 4, 2), (2, 2, 4))
        for one in (torch.ones(sides[0]), torch.ones(sides[1]).transpose(-1, -2)):
            other = [] if operator is aten.t.default else [torch.ones(sides[1])]
            yield [*([torch.ones(4)] if operator is aten.addmm.default else []), one, *other]
        return
    for shape in SHAPES:
        for one in laid_out(shape):
            if operator is aten.cat.default:
                yield from ([[one, other], 1] for other in laid_out(shape))
            elif operator is aten.permute.default:
                yield [one, [*range(1, one.dim()), 0]]
            elif operator is aten.expand.default:
                yield [one, [2, *shape]]
            elif operator in ARGUMENTS and "again" in ARGUMENTS[operator]:
                yield from ([one, other, *ARGUMENTS[operator][1:]] for other in laid_out(shape))
            elif operator in (aten.add.Tensor, aten.mul.Tensor):
                yield from ([one, other] for other in (*laid_out(shape), torch.ones(()), 1.5))
            elif operator is not aten.view.default or one.is_contiguous():
                yield [one, *ARGUMENTS.get(operator, [])]


def check(operator: OpOverload, arguments: list[Any], *, exactly: bool = False) -> bool:
    """Whether something is told of the call; it must be what the operator returns, or what PyTorch says of it."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True)
    with torch.no_grad():
        fakes = pytree.tree_map_only(Tensor, mode.from_tensor, arguments)
        with mode:
            told = told_at_once(mode, operator, tuple(fakes), {})
            if told is None:
                return False
            by_pytorch = operator(*fakes)
        found, real, fake = (
            [(one.shape, one.stride(), one.dtype) for one in pytree.tree_leaves(result) if one is not None]
            for result in (told, operator(*arguments), by_pytorch)
        )
    assert found == real or (not exactly and found == fake), [getattr(one, "shape", one) for one in arguments]
    return True


@pytest.mark.parametrize("operator", sorted(_AT_ONCE, key=str), ids=str)
def test_results_are_told_as_they_are(operator: OpOverload) -> None:
    for arguments in calls(operator):
        assert check(operator, arguments)


@pytest.mark.parametrize(
    ("image_type", "weight_type"),
    [(one, one) for one in (torch.float32, torch.float64, torch.bfloat16)] + [(torch.bfloat16, torch.float32)],
    ids=str,
)
def test_normalisations_are_told_as_they_are(image_type: torch.dtype, weight_type: torch.dtype) -> None:
    """PyTorch's own formula has a gradient lie as the result's gradient does, not as the kernel lays it out."""
    told = 0
    for shape in SHAPES:
        weight = torch.ones(shape[1], dtype=weight_type)
        for image in (one.to(image_type) for one in laid_out(shape)):
            for trains in (True, False):
                forward = [image, weight, weight, weight.clone(), weight.clone(), trains, 0.1, 1e-5]
                told += check(aten.native_batch_norm.default, forward, exactly=True)
                for gradient in (one.to(image_type) for one in laid_out(shape)):
                    for mask in ([True, True, True], [True, False, False]):
                        backward = [gradient, image, weight, *[weight.clone() for _ in range(4)], trains, 1e-5, mask]
                        told += check(aten.native_batch_norm_backward.default, backward, exactly=True)
    assert told > 50
