"""Calls that need only the shape of their first argument: they get an empty tensor, or none, and wait for nothing.

A mask of dropout is drawn into `empty_like(x)`. With `x` as an argument the draw would wait until `x` is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from threadcast.capture.graph.splitting import Part
from threadcast.capture.graph.values import Ref
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten

_EMPTY = {aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default}
_BY_SIZE: dict[Callable[..., Any], tuple[Callable[..., Any], int]] = {
    aten.zeros_like.default: (aten.zeros.default, 0), aten.new_zeros.default: (aten.zeros.default, 0),
    aten.ones_like.default: (aten.ones.default, 0), aten.new_ones.default: (aten.ones.default, 0),
    aten.full_like.default: (aten.full.default, 1), aten.new_full.default: (aten.full.default, 1),
    aten.rand_like.default: (aten.rand.default, 0), aten.randn_like.default: (aten.randn.default, 0),
}  # fmt: skip
"""Operators that give the same by sizes alone where the result is contiguous, and how many arguments come after."""
_BY_EMPTY = {
    *_BY_SIZE, aten.randint_like.default, aten.randint_like.low_dtype, aten.bernoulli.p, aten.normal_functional.default,
    aten.uniform.default, aten.exponential.default, aten.geometric.default, aten.cauchy.default,
    aten.log_normal.default,
}  # fmt: skip
"""Operators that read nothing of their first argument but how it lies in memory."""


PREVIOUS = Ref(-1)
"""In the arguments of a part: the result of the part before."""


def by_shape_alone(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: TensorSpec, result: Any
) -> tuple[list[tuple[Part, TensorSpec]], tuple[int, ...]]:
    """Parts that together do what the call does, each with what it returns, of which none reads the first argument for
    its shape; and which of the parts return the call's results.

    `given` describes the first argument, and `result` what the call returns. No parts where the call needs none.
    """
    if target is aten.native_dropout.default and given.numel and args[2] is not False:
        output, mask = result
        keeps = 1.0 - args[1]
        return [
            (_empty(mask), mask),
            (Part(aten.bernoulli_.float, (PREVIOUS, keeps), suffix="mask"), mask),
            (Part(aten.mul.Tensor, (args[0], PREVIOUS), suffix="kept"), output),
            (Part(aten.mul_.Scalar, (PREVIOUS, 1.0 / keeps if keeps else 0.0)), output),
        ], (3, 1)  # as PyTorch's kernel does it
    if not isinstance(result, TensorSpec) or kwargs.get("layout", torch.strided) not in (torch.strided, None):
        return [], ()
    if target in _EMPTY:
        return [(replace(_empty(result), suffix=""), result)], (0,)
    if target in _BY_SIZE and result.strides is None:
        made, more = _BY_SIZE[target]
        values = args[len(args) - more :]
        part = Part(made, (list(result.shape), *values), {"dtype": getattr(torch, result.dtype)})
        return [(part, result)], (0,)
    if target in _BY_EMPTY:
        return [(_empty(given), given), (Part(target, (PREVIOUS, *args[1:]), kwargs), result)], (1,)
    return [], ()


def _empty(spec: TensorSpec) -> Part:
    sides = list(spec.shape), list(spec.laid_out)
    return Part(aten.empty_strided.default, sides, {"dtype": getattr(torch, spec.dtype)}, suffix="empty")
