"""Norms of rows that hold nearly one number: what is given to backends has the mean taken off before.

The mean of such a row has a rounding error in backends, up to 1,000 times PyTorch's, and a norm divides it by the root
of its eps: 10.1 in 768 places becomes 0.003 in place of 0. Differences of such numbers are exact, and what is left by
the first mean is as small as its error, so that the second one's is far below it. For other rows that changes nothing
but roundings; a mean that is infinite or NaN is not taken off. The first number of a row would do as well, unless it is
far from the others, whose digits it would take.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from threadcast.runtime.backends.program_values import is_written

aten = torch.ops.aten
_MEANS = (aten.mean.default, aten.mean.dim, aten.var_mean.correction, aten.std_mean.correction)


def centred(x: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """Return x without its mean over `dims` (None: over all) where that is finite.

    It is x itself where that is not in single precision.
    """
    if x.dtype is not torch.float32:
        return x
    every = list(range(x.dim())) if not dims else list(dims)
    mean = x.mean(every, keepdim=True)
    return x - torch.where(mean.abs() < math.inf, mean, torch.zeros_like(mean))


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    """`native_layer_norm` of x without its means, which are added to those that it returns."""
    if x.dtype is not torch.float32:
        return aten.native_layer_norm.default(x, shape, weight, bias, eps)  # type: ignore[no-any-return]
    of_rows = x.mean(list(range(-len(shape), 0)), keepdim=True)  # if it is infinite or NaN, so is what the norm returns
    value, mean, rstd = aten.native_layer_norm.default(x - of_rows, shape, weight, bias, eps)
    return value, mean + of_rows, rstd


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    """`native_group_norm` of x without its means, which are added to those that it returns."""
    if x.dtype is not torch.float32 or not x.numel() or x.dim() < 2 or x.shape[1] != channels:
        return aten.native_group_norm.default(x, weight, bias, batch, channels, size, groups, eps)  # type: ignore[no-any-return]
    of_groups = x.view(batch, groups, -1, *x.shape[2:])  # a view, which keeps the order in memory
    dims = list(range(2, of_groups.dim()))
    given = centred(of_groups, dims).flatten(1, 2)
    value, mean, rstd = aten.native_group_norm.default(given, weight, bias, batch, channels, size, groups, eps)
    return value, mean + of_groups.mean(dims), rstd


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """`native_batch_norm`; by the batch's own statistics, as `nn.InstanceNorm2d` calls it, of x without its means."""
    if not training or mean is not None or var is not None or x.dtype is not torch.float32:
        return aten.native_batch_norm.default(x, weight, bias, mean, var, training, momentum, eps)  # type: ignore[no-any-return]
    dims = (0, *range(2, x.dim()))
    value, of_rest, invstd = aten.native_batch_norm.default(
        centred(x, dims), weight, bias, mean, var, training, momentum, eps
    )
    return value, of_rest + x.mean(dims), invstd


def variance(x: Tensor, dim: Sequence[int] | None = None, **options: Any) -> Tensor:
    """`var` of x without its mean."""
    return aten.var.correction(centred(x, dim), dim, **options)  # type: ignore[no-any-return]


def deviation(x: Tensor, dim: Sequence[int] | None = None, **options: Any) -> Tensor:
    """`std` likewise."""
    return aten.std.correction(centred(x, dim), dim, **options)  # type: ignore[no-any-return]


def variance_and_mean(x: Tensor, dim: Sequence[int] | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """`var_mean` likewise; the mean is that of x."""
    return variance(x, dim, **options), _mean(x, dim, **options)


def deviation_and_mean(x: Tensor, dim: Sequence[int] | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """`std_mean` likewise."""
    return deviation(x, dim, **options), _mean(x, dim, **options)


def _mean(x: Tensor, dim: Sequence[int] | None, *, keepdim: bool = False, **_: Any) -> Tensor:
    return x.mean(dim=list(dim) if dim else list(range(x.dim())), keepdim=keepdim)


def differences_from_mean(module: fx.GraphModule) -> dict[fx.Node, Sequence[int]]:
    """Find where a program takes a value's mean off it, as norms do that a model writes out; with the dimensions.

    [] are all dimensions.
    """
    found: dict[fx.Node, Sequence[int]] = {}
    for node in module.graph.nodes:
        if node.target is aten.sub.Tensor and not node.kwargs and not any(map(is_written, node.all_input_nodes)):
            dims = _dims_of_mean(node.args[1], node.args[0])
            if dims is not None:
                found[node] = dims
    return found


def _dims_of_mean(mean: Any, x: Any) -> Sequence[int] | None:
    """The dimensions over which a value is the mean of x, and which it keeps; None where it is something else."""
    if not isinstance(mean, fx.Node):
        return None
    of: Any = mean.args[0] if mean.target is operator.getitem and mean.args[1] == 1 else mean
    if of.op != "call_function" or of.target not in _MEANS or of.args[0] is not x or "dtype" in of.kwargs:
        return None
    given = dict(zip(("self", "dim", "keepdim"), of.args)) | of.kwargs
    dims = given.get("dim") or ()
    return list(dims) if given.get("keepdim", False) or not dims else None
