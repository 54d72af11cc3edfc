from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import schedules, seconds
from threadcast.core import Placement, Plan, Trace
from threadcast.core.errors import FormatError, InvalidInput

plans = st.builds(
    Plan, st.just(4), st.text(max_size=4), schedules(), seconds, st.lists(st.text(max_size=3)).map(tuple), st.text()
)
traces = st.builds(Trace, st.just(4), st.text(max_size=4), schedules(), st.booleans(), st.integers(1, 9))


def op(op_id: str, cores: tuple[int, ...], start_s: float, finish_s: float, **changes: Any) -> Placement:
    return Placement(op_id, cores, changes.pop("threads", len(cores)), start_s, finish_s, **changes)


@given(plans)
def test_a_plan_survives_json(plan):
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_ops_are_in_order_of_start():
    plan = Plan(1, "fifo", (op("b", (0,), 1.0, 2.0), op("a", (0,), 0.0, 1.0)))
    assert [placed.id for placed in plan.ops] == ["a", "b"]
    assert list(plan.by_id()) == ["a", "b"]


def test_makespan_gap_and_busy_share_follow_from_the_ops():
    ops = (op("a", (0, 1), 0.0, 1.0), op("b", (0,), 1.0, 4.0), op("c", (0,), 1.0, 2.0, hardware_thread=1))
    plan = Plan(2, "fifo", ops, lower_bound_s=3.2)
    assert plan.makespan_s == 4.0
    assert plan.gap == pytest.approx(0.25)
    assert plan.busy_share == 5.0 / 8.0


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"cores": (), "threads": 1}, "must be distinct and at least one"),
        ({"cores": (0, 0)}, "must be distinct"),
        ({"cores": (0,), "threads": 0}, "threads=0 must be at least 1"),
        ({"cores": (0,), "hardware_thread": -1}, "hardware_thread=-1"),
        ({"cores": (0,), "start_s": 2.0}, "out of order"),
        ({"cores": (0,), "start_s": -1.0}, "out of order"),
        ({"cores": (0,), "start_s": float("nan")}, "out of order"),
        ({"cores": (0,), "finish_s": float("inf")}, "out of order"),
    ],
)
def test_an_impossible_placement_is_refused(placement, message):
    with pytest.raises(InvalidInput, match=f"op 'a': .*{message}"):
        op("a", **{"start_s": 0.0, "finish_s": 1.0, **placement})


def test_a_schedule_has_cores_and_places_each_op_once_within_them():
    with pytest.raises(InvalidInput, match="cores=0"):
        Plan(0, "fifo", ())
    with pytest.raises(InvalidInput, match="'a' is placed twice"):
        Plan(1, "fifo", (op("a", (0,), 0.0, 1.0), op("a", (0,), 1.0, 2.0)))
    with pytest.raises(InvalidInput, match="2 different cores, more than cores=1"):
        Trace(1, "fifo", (op("a", (0,), 0.0, 1.0), op("b", (5,), 1.0, 2.0)))
    with pytest.raises(InvalidInput, match="steps=0"):
        Trace(1, "fifo", (), steps=0)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"schema": "x"}, "/schema"),
        ({"cores": "2"}, "/cores"),
        ({"cores": 0}, "/cores"),
        ({"policy": None}, "/policy"),
        ({"lower_bound_s": -1}, "/lower_bound_s"),
        ({"guarded": [1]}, "/guarded"),
        ({"ops": [{}]}, "/ops/0"),
        ({"ops": [{"id": "a", "cores": ["0"], "threads": 1, "start_s": 0, "finish_s": 1}]}, "/ops/0/cores"),
        ({"ops": [{"id": "a", "cores": [0], "threads": 1.5, "start_s": 0, "finish_s": 1}]}, "/ops/0/threads"),
        ({"ops": [{"id": "a", "cores": [0], "threads": 1, "start_s": "0", "finish_s": 1}]}, "/ops/0/start_s"),
        ({"ops": [{"id": "a", "cores": [0], "threads": 1, "start_s": 2, "finish_s": 1}]}, "/ops/0"),
        ({"ops": [{"id": "a", "cores": [0], "threads": 1, "start_s": 0, "finish_s": 1}] * 2}, "/ops"),
        ({"ops": [{"id": "a", "cores": [0, 1, 2], "threads": 3, "start_s": 0, "finish_s": 1}]}, "/ops"),
    ],
)
def test_errors_point_at_the_wrong_member(changes, pointer):
    document = {"schema": "threadcast.plan/1", "cores": 2, "policy": "fifo", "ops": [], **changes}
    with pytest.raises(FormatError) as caught:
        Plan.from_json(document)
    assert caught.value.pointer == pointer
