"""Replaces nodes of a captured program one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Node, Program
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
