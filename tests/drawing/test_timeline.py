"""The export keeps the trace-event rules, judged by a checker that knows nothing of threadcast."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given

from tests.core.strategies import schedules
from threadcast.core import Op, OpGraph, Placement, Plan, TensorSpec, Trace
from threadcast.core.errors import InvalidInput
from threadcast.drawing.timeline import perfetto, write


def check_trace_events(document: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Check the JSON object form of the Trace Event Format; return complete events by (process, thread)."""
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[int, int]] = set()
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        place = event["pid"], event["tid"]
        if event["ph"] == "M":
            keys = {"process_name": "name", "thread_name": "name"}
            assert set(event["args"]) == {keys.get(event["name"], "sort_index")}
            if event["name"] == "thread_name":
                assert place not in named
                named.add(place)
            continue
        assert event["ph"] == "X"
        assert isinstance(event["name"], str)
        assert isinstance(event["cat"], str)
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        tracks[place].append(event)
    assert set(tracks) == named
    for events in tracks.values():
        events.sort(key=lambda event: (event["ts"], event["ts"] + event["dur"]))
        for before, after in itertools.pairwise(events):
            end_ns = int(before["ts"] * 1000) + int(before["dur"] * 1000)  # as Perfetto reads them
            assert end_ns <= int(after["ts"] * 1000)
    return tracks


def op(op_id: str, cores: tuple[int, ...], start_s: float, finish_s: float, slot: int = 0) -> Placement:
    return Placement(op_id, cores, len(cores), start_s, finish_s, slot)


def thread_names(document: dict[str, Any], process: int) -> dict[int, str]:
    return {
        event["tid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name" and event["pid"] == process
    }


@given(schedules(), schedules())
def test_any_plan_and_trace_keep_the_rules(planned, happened):
    document = perfetto(Plan(4, "p", planned), Trace(4, "p", happened))
    tracks = check_trace_events(document)
    for process, ops in ((1, planned), (2, happened)):
        drawn = sorted(event["name"] for (pid, _), events in tracks.items() if pid == process for event in events)
        assert drawn == sorted(placed.id for placed in ops for _ in placed.cores)


def test_co_running_ops_are_on_tracks_of_their_own_and_wide_ones_on_several():
    plan = Plan(2, "p", (op("a", (0,), 0.0, 1.0), op("b", (1,), 0.0, 2.0), op("c", (0, 1), 2.0, 3.0)))
    document = perfetto(plan)
    tracks = check_trace_events(document)
    assert thread_names(document, 1) == {1: "core 0", 2: "core 1"}
    assert [event["name"] for event in tracks[1, 1]] == ["a", "c"]
    assert [event["name"] for event in tracks[1, 2]] == ["b", "c"]


def test_a_second_hardware_thread_has_its_own_track():
    document = perfetto(Plan(1, "p", (op("a", (0,), 0.0, 2.0), op("b", (0,), 0.0, 1.0, slot=1))))
    check_trace_events(document)
    assert thread_names(document, 1) == {1: "core 0", 2: "core 0, hardware thread 1"}


def test_measured_ops_that_overlap_on_a_core_are_kept_apart():
    document = perfetto(
        trace=Trace(1, "p", (op("a", (0,), 0.0, 2.0), op("b", (0,), 1.0, 3.0), op("c", (0,), 2.0, 3.0)))
    )
    tracks = check_trace_events(document)
    assert thread_names(document, 2) == {1: "core 0", 2: "core 0, overlap 1"}
    assert [[event["name"] for event in tracks[2, n]] for n in (1, 2)] == [["a", "c"], ["b"]]


def test_predicted_and_actual_are_two_groups_in_that_order():
    ops = (op("a", (0,), 0.0, 1.0),)
    document = perfetto(Plan(1, "fifo", ops), Trace(1, "fifo", ops))
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert names == ["predicted: fifo", "actual: fifo"]
    order = {e["pid"]: e["args"]["sort_index"] for e in document["traceEvents"] if e["name"] == "process_sort_index"}
    assert order[1] < order[2]
    simulated = perfetto(trace=Trace(1, "fifo", ops, simulated=True))
    assert simulated["traceEvents"][0]["args"]["name"] == "simulated: fifo"


def test_an_op_says_what_it_is_and_what_was_predicted():
    graph = OpGraph(("a",), (Op("mm", (TensorSpec((64, 32)), TensorSpec((32, 16)))),))
    plan = Plan(2, "p", (op("a", (0, 1), 0.0, 0.25),), guarded=("a",))
    tracks = check_trace_events(perfetto(plan, Trace(2, "p", (op("a", (0, 1), 0.0, 0.5),)), graph=graph))
    predicted, actual = tracks[1, 1][0], tracks[2, 1][0]
    assert (actual["cat"], actual["ts"], actual["dur"]) == ("mm", 0.0, 499_999.999)
    assert actual["args"] == {
        "threads": 2, "cores": [0, 1], "seconds": 0.5, "kind": "mm", "flops": 65_536.0, "bytes": 10_240.0,
        "predicted_seconds": 0.25,
    }  # fmt: skip
    assert predicted["args"]["guarded"] is True


def test_neither_plan_nor_trace_is_refused():
    with pytest.raises(InvalidInput, match="a plan or a trace"):
        perfetto()


def test_the_file_holds_the_document(tmp_path):
    plan = Plan(1, "p", (op("a", (0,), 0.0, 1.0),))
    write(tmp_path / "timeline.json", plan=plan)
    assert json.loads((tmp_path / "timeline.json").read_text()) == perfetto(plan)
