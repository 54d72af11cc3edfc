"""Splitting an operator that computes several gradients into one task for each gradient.

The rest of the backward pass waits for the gradient of the input; the gradients of weight and bias are needed only by
the update of these parameters. Source: TurboDL's fine-grained sub-tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One operator call. `members` are the positions of those results of the unsplit operator that it computes."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    suffix: str = ""
    members: tuple[int, ...] = ()
    single: int | None = None
    """The position of the result that the call returns alone; None where it returns as many results as the unsplit
    operator, and leaves out those that are not its own."""


def split_call(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], first: TensorSpec
) -> list[Part]:
    """The parts that together compute what the call computes; `first` describes the first tensor among `args`.

    An empty list where the operator is not split, as for numbers that are not real. Autograd itself calls the operators
    for single gradients, where it needs no others; only the sum for the bias of a convolution is another operator.
    """
    if kwargs or not getattr(torch, first.dtype).is_floating_point:
        return []
    if target is aten.convolution_backward.default:
        if len(args[4]) + 2 != len(first.shape):  # one stride for all dimensions: how many there are is not said
            return []
        return _convolution_backward(args)
    return _layer_norm_backward(args) if target is aten.native_layer_norm_backward.default else []


def _convolution_backward(args: tuple[Any, ...]) -> list[Part]:
    *fixed, mask = args
    gradient, weight_rank, transposed = args[0], len(args[4]) + 2, args[7]
    prefix = "convolution_transposed_backward" if transposed else "convolution_backward"
    target = aten.convolution_backward.default
    parts = []
    if mask[0]:
        parts.append(Part(target, (*fixed, [True, False, False]), kind=f"{prefix}_input", suffix="input", members=(0,)))
    if mask[1]:
        parts.append(
            Part(target, (*fixed, [False, True, False]), kind=f"{prefix}_weight", suffix="weight", members=(1,))
        )
    if mask[2]:
        # The operator asked for the bias alone would compute the weight's gradient too and throw it away.
        axes = [0, *range(2, weight_rank)]
        parts.append(
            Part(
                aten.sum.dim_IntList, (gradient, axes), kind=f"{prefix}_bias", suffix="bias", members=(2,), single=2
            )
        )  # fmt: skip
    return parts


def _layer_norm_backward(args: tuple[Any, ...]) -> list[Part]:
    *fixed, mask = args
    target = aten.native_layer_norm_backward.default
    parts = []
    if mask[0]:
        first = (*fixed, [True, False, False])
        parts.append(Part(target, first, kind="layer_norm_backward_input", suffix="input", members=(0,)))
    if mask[1] or mask[2]:
        rest = (*fixed, [False, mask[1], mask[2]])
        members = tuple(i for i in (1, 2) if mask[i])
        parts.append(Part(target, rest, kind="layer_norm_backward_weight", suffix="weight", members=members))
    return parts if len(parts) > 1 else []
