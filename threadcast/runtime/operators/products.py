"""Has operators of our own multiply the matrices of a captured program, where they are faster than PyTorch's.

PyTorch multiplies float32 matrices by MKL, which uses AVX-512 on Intel's CPUs only. oneDNN's kernels for blocks, which
PyTorch has too, use it on every CPU that has it; `threadcast::product` divides matrices into such blocks. Whether that
is faster is a property of the machine, and is measured once a process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Node, below_autograd
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.errors import ExecutionError
from threadcast.core.op import Op
from threadcast.core.tensor import TensorSpec
from threadcast.runtime.engine.native.library import has_engine, native_library
from threadcast.runtime.operators.clusters import specs_of
from threadcast.runtime.operators.pointwise import named
from threadcast.runtime.operators.replacing import with_nodes
from threadcast.threads.openmp import torch_threads

aten = torch.ops.aten

BLOCKED = "blocked_"
"""Beginning of the kinds of our operators in graphs: `blocked_mm` is in place of `mm`."""
PRODUCTS = {
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.addmm_.default,
}  # fmt: skip
"""Operators that may be replaced."""
LEAST_ROWS, LEAST_SIDE, LEAST_FLOPS = 8, 16, 1 << 19
"""Fewest rows; fewest columns and products of each number; and least work. Below, PyTorch's own are about as fast."""
MOST_APART = 1 << 29
"""Numbers from a row or column to the next one that the kernels do not reach any more."""

_TIMED = 128, 512, 512
"""Rows, depth and columns of the product by which both are timed."""
GAIN = 1.25
"""How many times as fast an operator of our own has to be on this machine to stand in place of PyTorch's."""
_TRIES = 7
_MOST_S = 0.2
"""Seconds after which there is no further try: without instructions for a type one may take as long."""
_Factors = tuple[Any, Any, Any]
"""What is added, or None, and the two factors."""

_logger = logging.getLogger("threadcast")


def with_products(captured: Captured) -> Captured:
    """Return `captured` with its larger products of float32 matrices by our operators.

    `captured` itself where it has none, and where our operators are not faster on this machine. The first call on a
    machine may compile the native engine.
    """
    if not any(node.target in PRODUCTS for node in captured.program.nodes):
        return captured
    if not _in_full_precision():
        return captured
    specs, count = specs_of(captured), len(captured.graph)
    found = {i: factors for i in range(count) if (factors := _factors(captured, i, specs)) is not None}
    if not found or not has_engine() or not serves():
        return captured
    product, product_ = operators()
    others = {}
    for i, factors in found.items():
        node, op = captured.program.nodes[i], captured.graph.ops[i]
        target = product_ if node.target is aten.addmm_.default else product
        kind, cost = f"{BLOCKED}{op.kind}", (op.flops, op.bytes_moved)
        inputs = tuple(specs[ref] for ref in dict.fromkeys(find_refs(factors)))
        others[i] = Node(target, factors, {}, node.phase), Op(kind, inputs, {}, op.outputs, cost)
    return with_nodes(captured, others)


def _factors(captured: Captured, i: int, specs: Mapping[Ref, TensorSpec]) -> _Factors | None:
    """What node i adds to which product, in the order of its own arguments; None where it is left to PyTorch."""
    node, op = captured.program.nodes[i], captured.graph.ops[i]
    if node.target not in PRODUCTS or not isinstance(node.target, OpOverload):
        return None
    given = named(node.target, node.args, node.kwargs)
    if given.pop("beta", 1) != 1 or given.pop("alpha", 1) != 1:
        return None
    a, b = list(given.values())[-2:]
    added = given["self"] if len(given) > 2 else None
    known = [specs.get(one) if isinstance(one, Ref) else None for one in (a, b, added) if one is not None]
    if any(spec is None or spec.dtype != "float32" for spec in known) or op.outputs[0].strides is not None:
        return None
    if max(*specs[a].laid_out, *specs[b].laid_out, *op.outputs[0].shape) >= MOST_APART:
        return None
    rows, depth, columns = *specs[a].shape[-2:], specs[b].shape[-1]
    if rows < LEAST_ROWS or min(depth, columns) < LEAST_SIDE or 2 * op.outputs[0].numel * depth < LEAST_FLOPS:
        return None
    return added, a, b


def _in_full_precision() -> bool:
    """Whether PyTorch multiplies float32 matrices in float32, and not as the caller may have it, in bfloat16."""
    mkldnn: Any = torch.backends.mkldnn
    levels: tuple[Any, ...] = (mkldnn.matmul, mkldnn, torch.backends)
    chosen = [level.fp32_precision for level in levels]
    return next((one for one in chosen if one != "none"), "ieee") == "ieee"


@cache
def operators() -> tuple[OpOverload, OpOverload]:
    """`threadcast::product` and `threadcast::product_`; ExecutionError where this version of PyTorch has no kernels."""
    if not native_library().define_products():
        raise ExecutionError("this version of PyTorch has no kernels for blocks of matrices")
    return torch.ops.threadcast.product.default, torch.ops.threadcast.product_.default


@cache
def serves() -> bool:
    """Whether our operators multiply a layer's matrices faster than PyTorch's, on one thread of this machine."""
    (rows, depth, columns), generator = _TIMED, torch.Generator().manual_seed(0)
    x, weight = _numbers(generator, rows, depth), _numbers(generator, columns, depth).t()
    try:
        product, _ = operators()
        with below_autograd():
            return times_as_fast(lambda: product(None, x, weight), lambda: aten.mm.default(x, weight)) >= GAIN
    except (ExecutionError, RuntimeError) as error:
        _logger.info("matrices are multiplied by PyTorch's operators: %s", error)
        return False


def _numbers(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def times_as_fast(
    ours: Callable[[], object], theirs: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of `theirs` over those of `ours` on one thread: of each the fastest of some tries, by turns.

    With more threads it would be how they divide the work that counts, and most operators of a plan have few.
    """
    best, first_s = [float("inf")] * 2, clock()
    with torch_threads(1):
        for number in range(_TRIES):
            if number > 1 and clock() - first_s > _MOST_S:
                break
            for which, run in enumerate((ours, theirs)):
                begin_s = clock()
                run()
                best[which] = min(best[which], clock() - begin_s)
    return best[1] / best[0]
