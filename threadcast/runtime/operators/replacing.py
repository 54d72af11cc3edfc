"""Replaces nodes of a captured program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import edges
from threadcast.capture.graph.program import Node, Program
from threadcast.capture.graph.values import Ref, map_refs
from threadcast.core.graph import OpGraph
from threadcast.core.op import Op


def with_nodes(captured: Captured, others: Mapping[int, tuple[Node, Op]]) -> Captured:
    """Return `captured` with other nodes and ops at some positions, which read, write and return what was there."""
    program, graph = captured.program, captured.graph
    nodes = tuple(others[i][0] if i in others else node for i, node in enumerate(program.nodes))
    ops = tuple(others[i][1] if i in others else op for i, op in enumerate(graph.ops))
    return replace(
        captured, graph=OpGraph(graph.ids, ops, graph.edges),
        program=Program(program.inputs, nodes, program.outputs, program.structure),
    )  # fmt: skip


class Block(NamedTuple):
    """A node of a new program. Slots are those of the old one; further nodes have slots behind them."""

    slot: int
    node: Node
    id: str
    op: Op
    results: Sequence[int] = ()
    """Slots of old nodes whose results are those of this one, in this order."""


def rebuilt(captured: Captured, blocks: Sequence[Block]) -> Captured:
    """Return `captured` with these nodes, in an order in which each value is there before it is read."""
    old, first = captured.program, len(captured.program.inputs)
    values = {slot: Ref(slot) for slot in range(first)}
    for slot, block in enumerate(blocks, first):
        values[block.slot] = Ref(slot)
        several = len(block.results) > 1
        values.update({of: Ref(slot, item if several else None) for item, of in enumerate(block.results)})

    def renumbered(ref: Ref) -> Ref:
        new = values[ref.slot]
        return new if ref.item is None else Ref(new.slot, ref.item)

    nodes = tuple(
        Node(node.target, map_refs(renumbered, node.args), map_refs(renumbered, node.kwargs), node.phase)
        for node in (block.node for block in blocks)
    )
    program = Program(old.inputs, nodes, map_refs(renumbered, old.outputs), old.structure)
    ids, ops = tuple(block.id for block in blocks), tuple(block.op for block in blocks)
    return replace(captured, graph=OpGraph(ids, ops, edges(nodes, old.inputs)), program=program)
