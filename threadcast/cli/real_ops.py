"""A graph without its views: only the ops that do work."""

from __future__ import annotations

from threadcast.core.graph import Edge, OpGraph


def without_views(graph: OpGraph) -> OpGraph:
    """The graph of the ops that are no views; what waited for a view waits for what the view waits for.

    Curves that the graph has are left out.
    """
    behind: list[dict[int, None]] = [{} for _ in graph.ops]  # the last real ops at or before each op
    for op in graph.topological_order:
        if graph.ops[op].is_view:
            for before in graph.predecessors[op]:
                behind[op].update(behind[before])
        else:
            behind[op][op] = None
    real = [i for i, op in enumerate(graph.ops) if not op.is_view]
    position = {old: new for new, old in enumerate(real)}
    edges = {
        (position[source], position[op]): None
        for op in real
        for before in graph.predecessors[op]
        for source in behind[before]
    }
    return OpGraph(
        tuple(graph.ids[i] for i in real), tuple(graph.ops[i] for i in real), tuple(Edge(*edge) for edge in edges)
    )
