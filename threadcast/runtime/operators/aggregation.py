"""Has two operators of our own compute the sums of edges' messages in a captured program.

PyTorch makes three or four passes over a tensor of as many rows as there are edges. Here it is one:
`threadcast::edge_order` finds the edges that lead to each row, once for all sums by the same indices, and
`threadcast::gather_add` adds their messages in registers, in the edges' order, so that results are PyTorch's bit for
bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch._ops import OpOverload

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Node
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.op import Op
from threadcast.core.tensor import TensorSpec
from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.operators.clusters import specs_of
from threadcast.runtime.operators.edge_sums import ADDS, EdgeSum, edge_sums
from threadcast.runtime.operators.replacing import Block, rebuilt

ORDER, ADD = "edge_order", "gather_add"
"""Kinds of the two operators in graphs."""


def with_edge_sums(captured: Captured) -> Captured:
    """Return `captured` with its sums of edges' messages by our operators; `captured` itself where it has none.

    ExecutionError where there are sums and the native library cannot be had.
    """
    if not any(node.target in ADDS for node in captured.program.nodes):
        return captured
    sums = edge_sums(captured)
    return _rewritten(captured, sums) if sums else captured


def _rewritten(captured: Captured, sums: Sequence[EdgeSum]) -> Captured:
    """The program with these sums by our operators, and without the nodes that nothing needs any more."""
    first = len(captured.program.inputs)
    replaced = {first + node for one in sums for node in one.replaced}
    needed = {ref.slot for ref in find_refs(captured.program.outputs)}
    kept: list[Block] = []
    for block in reversed(list(_blocks(captured, sums))):
        if block.slot not in replaced or block.slot in needed:
            kept.append(block)
            needed.update(ref.slot for ref in block.node.refs())
    return rebuilt(captured, kept[::-1])


def _blocks(captured: Captured, sums: Sequence[EdgeSum]) -> Iterator[Block]:
    """All nodes in the program's order, an order of edges before the first sum that needs it."""
    program, graph, specs = captured.program, captured.graph, specs_of(captured)
    order, add = _operators()
    by_node = {one.node: one for one in sums}
    further = len(program.inputs) + len(program.nodes)
    orders: dict[tuple[Ref, int], int] = {}
    for i, node in enumerate(program.nodes):
        slot, one = program.slot_of(i), by_node.get(i)
        if one is None:
            yield Block(slot, node, graph.ids[i], graph.ops[i])
            continue
        ordered = TensorSpec((one.rows + 2,), "int32"), TensorSpec(specs[one.to].shape, "int32")
        if (one.to, one.rows) not in orders:
            orders[one.to, one.rows] = further
            made = Op(ORDER, (specs[one.to],), {"rows": one.rows}, ordered)
            # An id without a dot: it is no part of a call of PyTorch's.
            yield Block(further, Node(order, (one.to, one.rows), {}, node.phase), f"{ORDER}_of_{graph.ids[i]}", made)
            further += 1
        by = orders[one.to, one.rows]
        args = (one.source, one.origin, one.scale, one.to, Ref(by, 0), Ref(by, 1), one.rows)
        known = {**specs, Ref(by, 0): ordered[0], Ref(by, 1): ordered[1]}
        inputs = tuple(known[ref] for ref in dict.fromkeys(find_refs(args)))
        op = _op(one, inputs, graph.ops[i].outputs[0], specs[one.to].numel)
        yield Block(slot, Node(add, args, {}, node.phase), f"{graph.ids[i]}.fused", op)


def _op(one: EdgeSum, inputs: tuple[TensorSpec, ...], result: TensorSpec, count: int) -> Op:
    """The op of a sum over `count` edges."""
    added = count * math.prod(result.shape[1:])
    attributes = {"rows": one.rows, "origin": one.origin is not None, "scale": one.scale is not None}
    moved = 4 * added + result.size_bytes + sum(spec.size_bytes for spec in inputs[1:])
    return Op(ADD, inputs, attributes, (result,), (added * (1 if one.scale is None else 2), moved))


@cache
def _operators() -> tuple[OpOverload, OpOverload]:
    """`threadcast::edge_order` and `threadcast::gather_add`."""
    native_library().define_aggregation()
    return torch.ops.threadcast.edge_order.default, torch.ops.threadcast.gather_add.default
