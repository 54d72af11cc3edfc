"""Operators whose results jump where a number changes by a rounding, so that right plans may differ in some steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from threadcast.capture.graph.captured import Captured

aten = torch.ops.aten

_GRADIENTS = {
    aten._prelu_kernel_backward, aten.adaptive_max_pool2d_backward, aten.adaptive_max_pool3d_backward,
    aten.fractional_max_pool2d_backward, aten.fractional_max_pool3d_backward, aten.hardshrink_backward,
    aten.hardsigmoid_backward, aten.hardswish_backward, aten.hardtanh_backward,
    aten.leaky_relu_backward, aten.max_pool2d_with_indices_backward, aten.max_pool3d_with_indices_backward,
    aten.multi_margin_loss_backward, aten.multilabel_margin_loss_backward, aten.rrelu_with_noise_backward,
    aten.softshrink_backward, aten.threshold_backward,
}  # fmt: skip
"""A number near zero, or two that are nearly equal, may come out the other way in another order of a sum."""
_COMPARISONS = {
    aten.argmax, aten.argmin, aten.argsort, aten.bucketize, aten.ceil, aten.cummax, aten.cummin, aten.eq, aten.floor,
    aten.ge, aten.gt, aten.kthvalue, aten.le, aten.lt, aten.max, aten.median, aten.min, aten.mode, aten.ne, aten.round,
    aten.searchsorted, aten.sgn, aten.sign, aten.sort, aten.topk, aten.trunc,
}  # fmt: skip
"""These jump where they compare or round floating-point numbers."""


def has_jumps(captured: Captured) -> bool:
    """Whether an operator of a captured graph jumps."""
    pairs = zip(captured.program.nodes, captured.graph.ops, strict=True)
    return any(_jumps(node.target, bool(op.inputs) and "float" in op.inputs[0].dtype) for node, op in pairs)


def graph_has_jumps(graph: GraphModule) -> bool:
    """Whether an operator of a graph of `torch.fx` jumps; its nodes have example values, as AOTAutograd leaves them."""
    return any(_jumps(node.target, _takes_floats(node)) for node in graph.graph.nodes if node.op == "call_function")


def _jumps(target: Any, takes_floats: bool) -> bool:
    packet = getattr(target, "overloadpacket", None)
    return packet in _GRADIENTS or (takes_floats and packet in _COMPARISONS)


def _takes_floats(node: Node) -> bool:
    first: Iterable[Any] = node.args[:1]
    values = [one.meta.get("val") for one in first if isinstance(one, Node)]
    return any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in values)
