"""Operators that PyTorch's own kernels compute wrongly or otherwise for some arguments, which a graph has none of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from threadcast.capture.graph.program import Node
from threadcast.core.errors import CaptureError
from threadcast.core.op import Op
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten

_FEW = 16
"""Input channels from which on the kernel was right: it was tried with 1 to 128 channels under glibc's MALLOC_CHECK_,
oneDNN of PyTorch 2.13 on a processor with AVX-512."""


def check_kernels(nodes: Sequence[Node], ops: Iterable[Op]) -> None:
    """CaptureError where a node calls a kernel that a plan cannot; `ops` describe the nodes' inputs.

    - oneDNN writes outside of its memory for the weight gradient of a convolution of single pixels with a stride, of
      few channels that are last in memory: the first layer of RepVGG in channels-last format ended the process.
    - A convolution of single pixels in three dimensions lays its result out otherwise on one thread than on several,
      where channels are last in memory (PyTorch 2.13): in a plan it would not lie as in eager PyTorch.
    """
    for node, op in zip(nodes, ops, strict=True):
        if node.target is aten.convolution_backward.default and _overruns(node, op.inputs):
            raise CaptureError(
                "cannot capture: PyTorch's weight gradient of a convolution with a stride, single pixels and fewer "
                f"than {_FEW} channels last in memory writes outside of its memory"
            )
        if node.target is aten.convolution.default and _orders_by_threads(node, op.inputs):
            raise CaptureError(
                "cannot capture: PyTorch's convolution of single pixels in three dimensions, with channels last in "
                "memory, orders its result by the number of threads"
            )


def _overruns(node: Node, inputs: Sequence[TensorSpec]) -> bool:
    image, weight = inputs[1], inputs[2]
    of_weight, strides, transposed = node.args[-1][1], node.args[4], node.args[7]
    if not of_weight or not overruns_in_channels_last(weight.shape, strides, transposed=transposed):
        return False
    return _has_channels_last(image) or _has_channels_last(weight)


def _orders_by_threads(node: Node, inputs: Sequence[TensorSpec]) -> bool:
    image, weight, strides = inputs[0], inputs[1], node.args[3]
    of_pixels = len(weight.shape) == 5 and set(weight.shape[2:]) == {1} and set(strides) == {1}
    return of_pixels and (_has_channels_last(image) or _has_channels_last(weight))


def overruns_in_channels_last(weight: Sequence[int], strides: Sequence[int], *, transposed: bool) -> bool:
    """Whether the kernel for the gradient of a weight of this shape overruns its memory where channels are last."""
    return not transposed and max(strides) > 1 and weight[1] < _FEW and set(weight[2:]) == {1}


def _has_channels_last(spec: TensorSpec) -> bool:
    strides = spec.strides  # None: as contiguous
    return strides is not None and strides[1] == 1 and strides[-1] == spec.shape[1] > 1
