"""What an op needs of the simulated machine: the library that runs it, arithmetic, memory traffic, shared data.

TensorFlow 1.9 built with MKL, which the paper measured, runs an op in one of three libraries, and their threads
behave differently. The division follows that release's graph rewriting (tensorflow/core/graph/mkl_layout_pass.cc).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from threadcast.core import Op

LANES = 16
"""Single-precision numbers in one 512-bit vector: so many channels are computed at once."""
ACCUMULATORS = 12
"""Independent vector sums that keep a core busy: a multiply-add takes 6 cycles on each of two vector units (Fog,
"Instruction tables", Knights Landing). MKL-DNN holds one sum per point of an output row, so shorter rows leave the
units idle."""


class Library(StrEnum):
    """The library that runs an op, and so decides on its threads."""

    MKL_DNN = "mkl-dnn"
    """OpenMP, with as many threads as the op is given."""
    MKL_BLAS = "mkl-blas"
    """OpenMP, but with at most as many: MKL_DYNAMIC, on by default, lets it use fewer (Intel MKL developer guide)."""
    EIGEN = "eigen"
    """One pool of tasks for all ops; an op takes part of the pool by its estimated cost."""


class Pass(StrEnum):
    """The three kernels of a convolution, each with its own speed."""

    FORWARD = "forward"
    INPUT = "input"
    WEIGHT = "weight"


PASSES = {
    "convolution": Pass.FORWARD,
    "convolution_backward_input": Pass.INPUT,
    "convolution_backward_weight": Pass.WEIGHT,
    "convolution_transposed": Pass.INPUT,  # a transposed convolution is the input gradient of one
    "convolution_transposed_backward_input": Pass.FORWARD,
    "convolution_transposed_backward_weight": Pass.WEIGHT,
}
MATRIX_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "matmul", "linear"})
STREAMING = frozenset({
    "batch_norm", "batch_norm_backward", "relu", "threshold_backward", "cat",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
})  # fmt: skip
"""The other kinds of ops that MKL-DNN runs: they read and write each value once, and their threads share no data.
Eigen runs element-wise arithmetic."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One op's work. `fill`: share of the vector units that its shape keeps busy, above 0 and up to 1.

    `flops` and `bytes` are those of one run. `shared_bytes` is the size of data that all threads read: a filter or the
    right matrix. `kernel` is set for convolutions and matrix products, None for ops with little arithmetic.
    """

    library: Library
    flops: float
    bytes: float
    kernel: Pass | None = None
    fill: float = 1.0
    shared_bytes: float = 0.0


def demand(op: Op) -> Demand:
    """The demand of `op`. Ops of unknown kinds are taken to be run by Eigen and limited by memory."""
    if op.kind in PASSES and len(op.inputs) > 1:
        return _convolution(op, PASSES[op.kind])
    if op.kind in MATRIX_PRODUCTS and len(op.inputs) > 1:
        right = op.inputs[-1].size_bytes
        return Demand(Library.MKL_BLAS, op.flops, op.bytes_moved, Pass.FORWARD, 1.0, right)
    library = Library.MKL_DNN if op.kind in STREAMING else Library.EIGEN
    return Demand(library, op.flops, op.bytes_moved)


def _convolution(op: Op, kernel: Pass) -> Demand:
    gradient = "backward" in op.kind
    weight = op.inputs[2 if gradient and len(op.inputs) > 2 else 1]
    if kernel is Pass.WEIGHT:
        # Vectors run along the filters, rows along the smaller of the two images.
        image = min(op.inputs[:2], key=lambda spec: spec.shape[-1])
        channels = weight.shape[0]
    else:
        image = (op.outputs or op.inputs)[0]  # without outputs: taken to keep the shape
        channels = image.shape[1]
    point_wise = math.prod(weight.shape[2:]) == 1
    row = math.prod(image.shape[2:]) if point_wise else image.shape[-1]  # a 1 x 1 filter sees the image as one row
    fill = min(1.0, row / ACCUMULATORS) * min(1.0, channels / LANES)
    return Demand(Library.MKL_DNN, op.flops, op.bytes_moved, kernel, fill, weight.size_bytes)
