"""A plan is the same after it was written as a difference and read again, and what does not differ takes no room."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.random_plans import make_random_plan
from threadcast.core import Op, OpGraph, Placement, Plan
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.graph import Edge
from threadcast.runtime.plans.plan_difference import difference, restored


def graph_of(n: int) -> OpGraph:
    edges = tuple(Edge(i // 2, i) for i in range(1, n))
    return OpGraph(tuple(f"op{i}" for i in range(n)), (Op("mul"),) * n, edges)


@st.composite
def plans(draw: st.DrawFn, n: int) -> Plan:
    """A plan of `n` ops with any times, or one whose ops start when others finish."""
    seed, cores = draw(st.integers(0, 2**32)), draw(st.integers(1, 6))
    plan = make_random_plan(graph_of(n), tuple(range(cores)), seed=seed, max_factor=draw(st.integers(1, 2)))
    if draw(st.booleans()):
        factor = draw(st.floats(1e-7, 1e7))
        moved = [replace(at, start_s=at.start_s * factor, finish_s=at.finish_s * factor) for at in plan.ops]
    else:
        times = st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)).map(sorted)
        moved = []
        for at in plan.ops:
            start_s, finish_s = draw(times)
            moved.append(replace(at, start_s=start_s, finish_s=finish_s))
    bound_s, guarded = draw(st.floats(0, 1e9)), draw(st.sampled_from([(), ("op0",)]))
    return Plan(plan.cores, draw(st.text(max_size=3)), tuple(moved), bound_s, guarded, draw(st.text(max_size=3)))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 20).flatmap(lambda n: st.tuples(plans(n), plans(n))))
def test_a_plan_comes_back_to_the_last_bit(pair: tuple[Plan, Plan]) -> None:
    plan, base = pair
    assert restored(json.loads(json.dumps(difference(plan, base))), base) == plan


def test_an_equal_plan_takes_no_room_and_one_other_op_little() -> None:
    ops = [Placement(f"op{i}", (i % 4,), 1, i / 7, (i + 1) / 7) for i in range(1_000)]
    base = Plan(4, "search", tuple(ops))
    same = difference(base, base)
    assert len(json.dumps(same)) < 400 < len(json.dumps(base.to_json())) / 100
    ops[500] = replace(ops[500], cores=(0, 1, 2, 3), threads=4)
    other = difference(Plan(4, "search", tuple(ops)), base)
    assert other["teams"] == [[[[0, 4]], 4, 0]]
    assert other["team_of"] == [[[500, 1]], [4]]
    assert len(json.dumps(other)) < len(json.dumps(same)) + 200


def test_plans_of_different_ops_have_no_difference() -> None:
    one, two = (make_random_plan(graph_of(n), (0,), seed=0) for n in (1, 2))
    with pytest.raises(InvalidInput, match="different ops"):
        difference(one, two)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("schema", "threadcast.plan/1"), ("cores", 0), ("team_of", [[[0, 1]], [99]]), ("team_of", [[[0, 2]], [0]]),
        ("team_of", None), ("moved", [[[0, 1]], [99]]), ("moved", [[[99, 1]], [0]]), ("seconds", [[[0, 1]], [-1.0]]),
        ("seconds", [[[0, 1]], ["x"]]), ("after", [[[0, 1]], [1]]), ("starts", [[[0, 1]], [float("inf")]]),
        ("teams", [[[[0, 1]], 0, 0]]), ("finishes", 3),
    ],
)  # fmt: skip
def test_what_is_no_difference_from_this_plan_is_refused(member: str, value: object) -> None:
    base = Plan(1, "p", tuple(Placement(f"op{i}", (0,), 1, float(i), i + 1.0) for i in range(2)))
    document = difference(base, base)
    if member == "teams":
        document["team_of"] = [[[0, 1]], [1]]
    with pytest.raises(FormatError):
        restored({**document, member: value}, base)
