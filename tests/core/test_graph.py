from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import graphs
from threadcast.core import Edge, Op, OpGraph, TensorSpec
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.graph import MAX_OPS

RELU = Op("relu", (TensorSpec((4,)),))


def chain(*ids: str) -> OpGraph:
    return OpGraph(ids, (RELU,) * len(ids), tuple(Edge(i, i + 1) for i in range(len(ids) - 1)))


def document(**changes: object) -> dict[str, object]:
    ops = [{"id": "a", "kind": "mm", "inputs": [[2, 3], [3, 4]]}, {"id": "b", "kind": "relu", "inputs": [[2, 4]]}]
    return {"schema": "threadcast.graph/1", "ops": ops, "edges": [["a", "b"]], **changes}


@given(graphs())
def test_a_graph_survives_json(graph):
    text = json.dumps(graph.to_json())
    again = OpGraph.from_json(json.loads(text))
    assert again.to_json() == graph.to_json()
    assert again.ops == graph.ops
    assert set(again.edges) == set(graph.edges)
    assert again.curves == graph.curves


@given(graphs())
def test_the_topological_order_keeps_every_edge(graph):
    place = {index: i for i, index in enumerate(graph.topological_order)}
    assert sorted(place) == list(range(len(graph)))
    assert all(place[edge.source] < place[edge.target] for edge in graph.edges)


@given(graphs())
def test_neighbours_are_the_edges_both_ways(graph):
    forward = {(i, j) for i in range(len(graph)) for j in graph.successors[i]}
    backward = {(i, j) for j in range(len(graph)) for i in graph.predecessors[j]}
    assert forward == backward == {(edge.source, edge.target) for edge in graph.edges}


@given(graphs(), st.data())
def test_an_edge_that_closes_a_cycle_is_refused(graph, data):
    if not graph.edges:
        return
    edge = data.draw(st.sampled_from(graph.edges))
    with pytest.raises(InvalidInput, match="cycle"):
        OpGraph(graph.ids, graph.ops, (*graph.edges, Edge(edge.target, edge.source)))


def test_ids_are_unique_and_one_an_op():
    with pytest.raises(InvalidInput, match="'a' is used twice"):
        OpGraph(("a", "a"), (RELU, RELU))
    with pytest.raises(InvalidInput, match="1 ids for 2 ops"):
        OpGraph(("a",), (RELU, RELU))


def test_more_than_the_allowed_ops_are_refused():
    ids = tuple(map(str, range(MAX_OPS + 1)))
    with pytest.raises(InvalidInput, match="100001 ops are more than the 100000"):
        OpGraph(ids, (RELU,) * len(ids))
    with pytest.raises(FormatError) as caught:
        OpGraph.from_json(document(ops=[{}] * (MAX_OPS + 1)))
    assert caught.value.pointer == "/ops"


def test_distinct_ops_come_once_in_order_of_appearance():
    other = Op("tanh", (TensorSpec((4,)),))
    graph = OpGraph(("a", "b", "c"), (RELU, other, RELU))
    assert list(graph.distinct_ops().values()) == [RELU, other]


def test_a_graph_file_is_read_as_written(tmp_path):
    path = tmp_path / "graph.json"
    graph = OpGraph.from_json(document())
    graph.write(path)
    assert OpGraph.read(path).to_json() == graph.to_json()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"ops": ' + b"9" * 5000 + b"}"],
    ids=["empty", "cut", "not text", "too deep", "too long a number"],
)  # fmt: skip
def test_a_file_that_is_not_json_is_refused_by_name(tmp_path, content):
    path = tmp_path / "graph.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"graph\.json is not JSON"):
        OpGraph.read(path)
