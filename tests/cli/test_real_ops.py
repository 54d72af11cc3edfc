"""Views are left out of a graph, and what waited for them waits for what they wait for."""

from threadcast.cli.real_ops import without_views
from threadcast.core import Edge, Op, OpGraph, TensorSpec

SPEC = TensorSpec((4,))


def graph(kinds: list[str], edges: list[tuple[int, int]]) -> OpGraph:
    ops = tuple(Op(kind, (SPEC,), outputs=(SPEC,)) for kind in kinds)
    return OpGraph(tuple(f"op{i}" for i in range(len(ops))), ops, tuple(Edge(*edge) for edge in edges))


def test_what_waited_for_a_view_waits_for_what_the_view_waits_for():
    found = without_views(graph(["relu", "view", "t", "add", "mul"], [(0, 1), (1, 2), (2, 3), (2, 4), (0, 4)]))
    assert found.ids == ("op0", "op3", "op4")
    assert {(e.source, e.target) for e in found.edges} == {(0, 1), (0, 2)}
