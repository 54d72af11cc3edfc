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
from collections.abc import Callable, Sequence
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


def _layer_norm(x: Tensor, shape: Sequence[int], *others: Any) -> tuple[Tensor, ...]:
    if x.dtype is torch.float32:
        x = x - x.mean(list(range(-len(shape), 0)), keepdim=True)  # if it is infinite or NaN, so is what is returned
    return aten.native_layer_norm.default(x, shape, *others)  # type: ignore[no-any-return]


def _group_norm(x: Tensor, weight: Any, bias: Any, batch: int, channels: int, *others: Any) -> tuple[Tensor, ...]:
    if x.dtype is torch.float32 and x.numel() and x.dim() >= 2 and x.shape[1] == channels:
        of_groups = x.view(batch, others[1], -1, *x.shape[2:])  # a view, which keeps the order in memory
        x = centred(of_groups, list(range(2, of_groups.dim()))).flatten(1, 2)
    return aten.native_group_norm.default(x, weight, bias, batch, channels, *others)  # type: ignore[no-any-return]


def _batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *others: Any) -> Any:
    """By the batch's own statistics, as `nn.InstanceNorm2d` calls it, of x without its means."""
    if training and mean is None and var is None:
        x = centred(x, (0, *range(2, x.dim())))
    return aten.native_batch_norm.default(x, weight, bias, mean, var, training, *others)


NORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.native_layer_norm.default: _layer_norm, aten.native_group_norm.default: _group_norm,
    aten.native_batch_norm.default: _batch_norm,
}  # fmt: skip
"""For a norm, what returns the same of its argument without its means; but for the means, which nothing may read."""


def _of_rows(spread: Callable[..., Any]) -> Callable[..., Any]:
    """A variance or deviation of x without its mean, as `spread` computes it."""

    def found(x: Tensor, dim: Sequence[int] | None = None, **options: Any) -> Any:
        return spread(centred(x, dim), dim, **options)

    return found


def _with_mean(spread: Callable[..., Any]) -> Callable[..., Any]:
    """The same with the mean of x."""
    alone = _of_rows(spread)

    def found(x: Tensor, dim: Sequence[int] | None = None, **options: Any) -> Any:
        dims, keepdim = list(dim or range(x.dim())), options.get("keepdim", False)
        return alone(x, dim, **options), x.mean(dims, keepdim=keepdim)

    return found


SPREADS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.var.correction: _of_rows(aten.var.correction), aten.std.correction: _of_rows(aten.std.correction),
    aten.var_mean.correction: _with_mean(aten.var.correction),
    aten.std_mean.correction: _with_mean(aten.std.correction),
}  # fmt: skip
"""For a variance or deviation, what computes the same of its argument without its mean."""


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
