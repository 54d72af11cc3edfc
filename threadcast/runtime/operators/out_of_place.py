"""Has point-wise operators that write in place return a new tensor in place of that, so that they can be fused.

Cells of recurrent layers, and activations with `inplace=True`, write to parts of one temporary tensor. That orders them
one after the other, and keeps each apart from what reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import edges, may_be_returned, memories
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.graph import OpGraph
from threadcast.runtime.operators.pointwise import formula, named

aten = torch.ops.aten

APART = {
    aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int, aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default, aten.unsafe_chunk.default,
}  # fmt: skip
"""Operators of whose results no two share an element."""
_BY_STRIDES = {aten.as_strided.default, aten.as_strided_.default, aten.resize_.default}
"""Operators of which it is not known what they read around a value in memory."""


def may_be_out_of_place(captured: Captured) -> set[int]:
    """Return the nodes that write in place, and that as well could return a new tensor with a formula.

    They write to no memory of the caller's, and what later reads that does so by their results.
    """
    program = captured.program
    found = {
        i
        for i, (node, op) in enumerate(zip(program.nodes, captured.graph.ops, strict=True))
        if (other := returning(node.target)) is not None
        and formula(other, named(other, node.args, node.kwargs)) is not None
        and [spec.dtype for spec in op.outputs] == ["float32"]
    }
    if not found:
        return found
    memory, end = memories(program.nodes, program.inputs, undeclared=True), len(program.nodes)
    last: defaultdict[int, dict[Ref, int]] = defaultdict(dict)
    """For each memory the values there, and the last node that uses each; the end for results of the program."""
    for i, node in enumerate(program.nodes):
        for ref in node.refs():
            last[memory[ref.slot]][ref] = i
    for ref in find_refs(program.outputs):
        last[memory[ref.slot]][ref] = end
    bound = {memory[ref.slot] for node in program.nodes if node.target in _BY_STRIDES for ref in node.refs()}
    bound.update(range(len(program.inputs)))
    lies = {ref: _lies_in(captured, ref) for i in found for ref in last[memory[program.slot_of(i)]]}

    def may(i: int) -> bool:
        slot = program.slot_of(i)
        values = last[memory[slot]]
        later = [ref for ref, reader in values.items() if reader > i]
        if memory[slot] in bound or sum(reader == end for reader in values.values()) > 1:
            return False
        read = [ref for ref in later if slot in lies[ref]]
        written = lies[program.nodes[i].refs()[0]]
        return bool(read) and all(ref in read or (lies[ref] and _apart(captured, lies[ref], written)) for ref in later)

    return {i for i in found if may(i)}


def out_of_place(captured: Captured, chosen: Collection[int]) -> Captured:
    """Return `captured` with the nodes `chosen` from `may_be_out_of_place` returning new tensors."""
    if not chosen:
        return captured
    program, graph = captured.program, captured.graph
    nodes, ops = list(program.nodes), list(graph.ops)
    for i in chosen:
        other = returning(nodes[i].target)
        assert other is not None
        nodes[i], ops[i] = replace(nodes[i], target=other), replace(ops[i], kind=ops[i].kind.removesuffix("_"))
    changed = replace(program, nodes=tuple(nodes))
    return replace(
        captured, graph=OpGraph(graph.ids, tuple(ops), edges(changed.nodes, changed.inputs)), program=changed
    )


def returning(target: Any) -> OpOverload | None:
    """Return the operator that returns what `target` writes; None where that does not write in place."""
    if not isinstance(target, OpOverload) or not target._schema.name.endswith("_"):
        return None
    packet = getattr(aten, target._schema.name.removeprefix("aten::").removesuffix("_"), None)
    others = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]
    return next((other for other in others if _types(other) == _types(target)), None)


def _types(operator: OpOverload) -> list[str]:
    """The types of an operator's arguments: that of `pow_.Scalar` has those of `pow.Tensor_Scalar`."""
    return [str(argument.type) for argument in operator._schema.arguments]


def _lies_in(captured: Captured, ref: Ref) -> dict[int, int | None]:
    """The slots in whose memory a value lies: its own, of what it is a view of, and so on; of each the item.

    Empty where it may be a view of several values.
    """
    n, found = len(captured.program.inputs), {ref.slot: ref.item}
    while ref.slot >= n and (parts := may_be_returned(captured.program.nodes[ref.slot - n])):
        if len(parts) > 1:
            return {}
        ref = parts[0]
        found[ref.slot] = ref.item
    return found


def _apart(captured: Captured, one: dict[int, int | None], other: dict[int, int | None]) -> bool:
    """Whether two values, given by what they lie in, share no element."""
    n, nodes = len(captured.program.inputs), captured.program.nodes
    return any(one[slot] != other[slot] and nodes[slot - n].target in APART for slot in one.keys() & other.keys())
