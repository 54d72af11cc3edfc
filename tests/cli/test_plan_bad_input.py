"""What `threadcast plan` says of graphs and options that are wrong, and of those at the edge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import invoke
from tests.cli.graph_files import GRAPH, document_of, written


def one_op(**changes: Any) -> dict[str, Any]:
    """A graph of one op with these members."""
    return {"ops": [{"id": "a", "kind": "mm", "inputs": [], "curve": {"1": 1.0}, **changes}], "edges": []}


HUGE = 10**400


BAD_GRAPHS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a cycle": ({"edges": [["first", "left"], ["left", "first"]]}, "/edges", "cycle through or before first, left"),
    "an edge to itself": ({"edges": [["join", "join"]]}, "/edges", "cycle through or before join"),
    "an edge from nowhere": ({"edges": [["nowhere", "first"]]}, "/edges/0", "unknown op 'nowhere'"),
    "an edge of three": ({"edges": [["first", "left", "join"]]}, "/edges/0", "must be [from, to]"),
    "an ordering edge besides": ({"ordering_edges": [["join", "first"]]}, "/ordering_edges/0", "among edges too"),
    "an empty curve": (one_op(curve={}), "/ops/0/curve", "at least one point"),
    "a negative time": (one_op(curve={"1": -0.5}), "/ops/0/curve/1", "at least 0, got -0.5"),
    "not a number": (one_op(curve={"1": float("nan")}), "/ops/0/curve/1", "finite number, got nan"),
    "a time of 400 digits": (one_op(curve={"1": HUGE}), "/ops/0/curve/1", "finite number, got 1000"),
    "half a thread": (one_op(curve={"1.5": 1.0}), "/ops/0/curve/1.5", "'1.5' is not a thread count"),
    "a thread and a line": (one_op(curve={"1\n": 1.0}), "/ops/0/curve/1\n", "is not a thread count"),
    "an id twice": ({"ops": [GRAPH["ops"][0]] * 2, "edges": []}, "/ops/1/id", "'first' is used twice"),
    "a shape below 0": (one_op(inputs=[[[-1]]]), "/ops/0/inputs/0", "every side must be an integer of at least 0"),
    "a shape that overflows": (one_op(inputs=[[[2**40] * 40]]), "/ops/0/inputs/0", "more elements than the 9223372036"),
    "FLOPs below 0": (one_op(flops=-1), "/ops/0/flops", "at least 0, got -1"),
    "another schema": ({"schema": "threadcast.plan/1"}, "/schema", "expected 'threadcast.graph/1'"),
}


@pytest.mark.parametrize(("changes", "pointer", "complaint"), BAD_GRAPHS.values(), ids=list(BAD_GRAPHS))
def test_programs_get_what_is_wrong_and_where(
    tmp_path: Path, changes: dict[str, Any], pointer: str, complaint: str
) -> None:
    result = invoke("plan", written(tmp_path, **changes), "--cores", "16", "--json")
    assert result.exit_code == 1, result.output
    error = json.loads(result.stdout)["error"]
    assert (error["type"], error["pointer"], complaint in error["message"]) == ("FormatError", pointer, True), error
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("threadcast: error: /")


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"ops": ', "[" * 100_000], ids=["", "array", "null", "half", "deep"]
)
def test_what_is_no_graph_at_all_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(text)
    result = invoke("plan", str(path), "--cores", "16", "--json")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1), result.output
    assert "graph.json" in json.loads(result.stdout)["error"]["message"]


def test_a_thread_count_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text('{"schema": "threadcast.graph/1", "ops": [{"id": "a", "kind": "mm", "curve": {"1": 1, "1": 2}}]}')
    result = invoke("plan", str(path), "--cores", "4", "--json")
    assert result.exit_code == 1
    assert "graph.json: an object has the member '1' twice" in json.loads(result.stdout)["error"]["message"]


def test_times_at_the_end_of_what_a_float_holds_are_planned(tmp_path: Path) -> None:
    ops = [{"id": f"op{i}", "kind": "mm", "inputs": [], "curve": {"1": s}} for i, s in enumerate((5e-324, 0.0, 1.0))]
    document = document_of(written(tmp_path, ops=ops, edges=[["op0", "op1"]]), cores=4)
    assert document["makespan_s"] == pytest.approx(1.0)
    too_long = invoke("plan", written(tmp_path, **one_op(curve={"1": 1e300})), "--cores", "4", "--json")
    assert "at most 1e+12, got 1e+300; check their unit" in json.loads(too_long.stdout)["error"]["message"]


def test_control_characters_of_a_graph_do_not_reach_the_terminal(tmp_path: Path) -> None:
    graph = written(tmp_path, **one_op(id="a\x1b[31m\ud800\nb"))
    shown = invoke("plan", graph, "--cores", "4", "--explain")
    assert shown.exit_code == 0, shown.output
    assert "a\\x1b[31m\\ud800\\nb" in shown.stdout
    wrong = invoke("plan", written(tmp_path, edges=[["x\x1b[31m", "y"]]))
    assert "\x1b" not in wrong.stderr


def test_other_bad_input_gets_one_clear_line(tmp_path: Path) -> None:
    graph = written(tmp_path)
    store = f"sqlite:///{tmp_path}/none.db"
    for arguments, complaint in (
        ([str(tmp_path / "none.json")], "No such file"),
        ([graph, "--cores", "4", "--machine", graph], f"(in {graph})"),
        ([graph, "--cores", "5000"], "cores=5000: a described machine has at least 1 and at most 4096"),
        ([graph, "--cores", "4", "--policy", "critical_paht"], "did you mean 'critical_path'"),
        (["lenet", "--store", store, "--model", "hill_climb"], "there is no store at"),
        (["leent", "--store", store], "did you mean 'lenet'"),
        (["lenet", "--size", "huge", "--store", store], "lenet has no size 'huge'"),
        (["lenet", "--store", store, "--model", "nonesuch"], "no model is called 'nonesuch'"),
        (["lenet/tiny/b4/training", "--store", store], "there is no store at"),
    ):
        result = invoke("plan", *arguments)
        assert (result.exit_code, complaint in result.stderr) == (1, True), result.output
    assert invoke("plan", graph, "--cores", "0").exit_code == 2
    for option in ("--output", "--timeline"):
        nowhere = invoke("plan", graph, option, str(tmp_path / "no" / "plan.json"))
        assert (nowhere.exit_code, "in a folder that does not exist" in nowhere.stderr) == (2, True)
    twice = invoke("plan", graph, "--cores", "4", "--policy", "uniform", "--option", "inter=1", "--option", "inter=2")
    assert (twice.exit_code, "inter is given twice" in twice.stderr) == (2, True)
