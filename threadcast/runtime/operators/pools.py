"""Has an operator of our own find the largest numbers of windows of images, where it is faster than PyTorch's.

PyTorch's `max_pool2d_with_indices` compares number by number where the rows of images are contiguous. Ours compares
those of many windows at once; results are the same, bit for bit.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Node, below_autograd
from threadcast.capture.graph.values import Ref
from threadcast.core.errors import ExecutionError
from threadcast.core.op import Op
from threadcast.runtime.engine.native.library import has_engine, native_library
from threadcast.runtime.operators.pointwise import named
from threadcast.runtime.operators.race import GAIN, times_as_fast
from threadcast.runtime.operators.replacing import with_nodes

aten = torch.ops.aten

MAX_POOL = "vector_max_pool2d"
"""Kind of our operator in graphs."""
LEAST_WINDOWS, LEAST_IN_ROW = 32, 8
"""Fewest windows of an image, and of a row where they are more than one place apart: copying a row takes a moment for
each place in between."""

_POOL = aten.max_pool2d_with_indices.default
_logger = logging.getLogger("threadcast")


def with_pools(captured: Captured) -> Captured:
    """Return `captured` with its `max_pool2d_with_indices` of contiguous float32 images by our operator.

    `captured` itself where it has none, where its sizes vary, and where our operator is not faster on this machine or
    would not give PyTorch's results. The first call on a machine may compile the native engine.
    """
    if captured.sizes is not None:
        return captured
    found = {i: given for i in range(len(captured.graph)) if (given := _arguments(captured, i)) is not None}
    if not found or not has_engine() or not serves():
        return captured
    others = {}
    for i, arguments in found.items():
        op, (_, size, kernel, stride, padding, dilation) = captured.graph.ops[i], arguments
        attributes = {
            "size": size, "kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation,
        }  # fmt: skip
        other = Op(MAX_POOL, op.inputs, attributes, op.outputs, (op.flops, op.bytes_moved))
        others[i] = Node(operator(), arguments, {}, captured.program.nodes[i].phase), other
    return with_nodes(captured, others)


def _arguments(captured: Captured, i: int) -> tuple[Any, ...] | None:
    """What our operator is given in place of node i; None where it is left to PyTorch."""
    node, op = captured.program.nodes[i], captured.graph.ops[i]
    if node.target is not _POOL or not isinstance(node.target, OpOverload) or len(op.outputs) != 2:
        return None
    given = named(node.target, node.args, node.kwargs)
    images, result = op.inputs[0], op.outputs[0]
    contiguous = images.strides is None and all(spec.strides is None for spec in op.outputs)
    if not isinstance(given["self"], Ref) or images.dtype != "float32" or not contiguous:
        return None
    kernel, stride, padding, dilation = (
        _both(given[name]) for name in ("kernel_size", "stride", "padding", "dilation")
    )  # fmt: skip
    stride, size = stride or kernel, list(result.shape[-2:])
    if size[0] * size[1] < LEAST_WINDOWS or (stride[1] > 1 and size[1] < LEAST_IN_ROW):
        return None
    return given["self"], size, kernel, stride, padding, dilation


def _both(given: Any) -> list[int]:
    """The numbers of both sides; empty where none are given."""
    sides = [given] if isinstance(given, int) else list(given)
    return sides * 2 if len(sides) == 1 else sides


@cache
def operator() -> OpOverload:
    """`threadcast::max_pool`."""
    native_library().define_pools()
    return torch.ops.threadcast.max_pool.default


@cache
def serves() -> bool:
    """Whether our operator gives PyTorch's results, and on one thread of this machine faster."""
    try:
        with below_autograd():
            generator = torch.Generator().manual_seed(0)
            images = torch.randn(4, 16, 56, 56, generator=generator, dtype=torch.float32, device="cpu")
            if not is_right(images, [3, 3], [2, 2], [1, 1], [1, 1], ceil_mode=False):
                _logger.warning("images are pooled by PyTorch's operator: ours gives other results")
                return False
            ours = operator()
            return (
                times_as_fast(
                    lambda: ours(images, [28, 28], [3, 3], [2, 2], [1, 1], [1, 1]),
                    lambda: _POOL(images, [3, 3], [2, 2], [1, 1], [1, 1]),
                )
                >= GAIN
            )
    except (ExecutionError, RuntimeError) as error:
        _logger.info("images are pooled by PyTorch's operator: %s", error)
        return False


def is_right(
    images: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], *, ceil_mode: bool
) -> bool:
    """Return whether our operator gives what PyTorch's gives, bit for bit."""
    largest, places = _POOL(images, kernel, stride, padding, dilation, ceil_mode)
    found, at = operator()(images, list(largest.shape[-2:]), kernel, stride, padding, dilation)
    return torch.equal(found.view(torch.int32), largest.view(torch.int32)) and torch.equal(at, places)
