from __future__ import annotations

import copy
import json
import pickle

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
def test_a_graph_is_copied_and_pickled_with_its_curves(graph):
    for again in (copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert again.to_json() == graph.to_json()
        assert again.topological_order == graph.topological_order


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


def test_among_free_choices_the_lower_position_comes_first():
    graph = OpGraph(("a", "b", "c", "d"), (RELU,) * 4, (Edge(2, 0), Edge(3, 1)))
    assert graph.topological_order == (2, 0, 3, 1)


def test_a_loop_to_itself_is_a_cycle():
    with pytest.raises(InvalidInput, match="cycle through or before a"):
        OpGraph(("a",), (RELU,), (Edge(0, 0),))


def test_an_edge_outside_the_ops_is_refused():
    with pytest.raises(InvalidInput, match="outside the 1 ops"):
        OpGraph(("a",), (RELU,), (Edge(0, 1),))


def test_ids_are_unique_and_one_an_op():
    with pytest.raises(InvalidInput, match="'a' is used twice"):
        OpGraph(("a", "a"), (RELU, RELU))
    with pytest.raises(InvalidInput, match="1 ids for 2 ops"):
        OpGraph(("a",), (RELU, RELU))


def test_curves_are_for_known_ops():
    with pytest.raises(InvalidInput, match="unknown op ids: x"):
        OpGraph(("a",), (RELU,), (), {"x": {1: 0.1}})


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


def test_the_example_of_the_format_is_read():
    graph = OpGraph.from_json(document())
    assert (graph.ids, graph.edges) == (("a", "b"), (Edge(0, 1),))
    assert graph.ops[0].flops == 48


@pytest.mark.parametrize(
    ("changes", "pointer", "message"),
    [
        ({"schema": "threadcast.graph/9"}, "/schema", "expected 'threadcast.graph/1'"),
        ({"schema": None}, "/schema", "must be a string"),
        ({"ops": {}}, "/ops", "must be an array"),
        ({"ops": [3]}, "/ops/0", "must be an object"),
        ({"ops": [{"kind": "relu"}]}, "/ops/0", "'id' is missing"),
        ({"ops": [{"id": 1, "kind": "relu"}]}, "/ops/0/id", "must be a string"),
        ({"ops": [{"id": "a", "kind": "x"}, {"id": "a", "kind": "x"}]}, "/ops/1/id", "'a' is used twice"),
        ({"ops": [{"id": "", "kind": "x"}]}, "/ops/0/id", "at least one character"),
        ({"ops": [{"id": "a", "kind": "x", "inputs": [["y"]]}]}, "/ops/0/inputs/0", "a tensor must be"),
        ({"edges": [["a", "z"]]}, "/edges/0", "unknown op 'z'"),
        ({"edges": [["a", "b"], ["a"]]}, "/edges/1", "must be [from, to]"),
        ({"edges": [["a", ["b"]]]}, "/edges/0", "must be [from, to]"),
        ({"edges": "ab"}, "/edges", "must be an array"),
        ({"edges": [["a", "b"], ["b", "a"]]}, "/edges", "cycle"),
        ({"ordering_edges": [["b", "a"]]}, "/ordering_edges/0", "among edges too"),
    ],
)
def test_errors_point_at_the_wrong_member(changes, pointer, message):
    with pytest.raises(FormatError) as caught:
        OpGraph.from_json(document(**changes))
    assert caught.value.pointer == pointer
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("curve", "pointer"),
    [
        ({}, "/ops/0/curve"),
        ([], "/ops/0/curve"),
        ({"0": 1.0}, "/ops/0/curve/0"),
        ({"01": 1.0}, "/ops/0/curve/01"),
        ({"-1": 1.0}, "/ops/0/curve/-1"),
        ({"٣": 1.0}, "/ops/0/curve/٣"),
        ({"9" * 5000: 1.0}, "/ops/0/curve/" + "9" * 5000),
        ({"1": -0.5}, "/ops/0/curve/1"),
        ({"1": "fast"}, "/ops/0/curve/1"),
        ({"1": float("inf")}, "/ops/0/curve/1"),
    ],
)
def test_a_wrong_curve_is_refused_with_its_place(curve, pointer):
    with pytest.raises(FormatError) as caught:
        OpGraph.from_json(document(ops=[{"id": "a", "kind": "mm", "curve": curve}], edges=[]))
    assert caught.value.pointer == pointer


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


def test_a_graph_file_has_no_blanks_around_kinds(tmp_path):
    path, curves = tmp_path / "graph.json", {"a": {1: 2.0}}
    OpGraph(("a", "b"), (Op(" mm "), Op("relu")), (Edge(0, 1),), curves).write(path)
    read = OpGraph.read(path)
    assert [op.key for op in read.ops] == [Op("mm").key, Op("relu").key]
    assert (read.edges, read.curves) == ((Edge(0, 1),), curves)
