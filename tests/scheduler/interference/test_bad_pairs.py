"""Bad pairs are found in traces where a co-run, and nothing else, explains the loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import Machine, Op, OpGraph, Placement, Trace
from threadcast.core.corun import CoRunTable
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.interference.bad_pairs import FEWEST_TIMES, LARGEST, learned, observed_slowdowns

OTHERS = ("x", "y", "z")
GRAPH = OpGraph(("a", "b", "c", *OTHERS), tuple(Op(name) for name in ("a", "b", "c", *OTHERS)))
A, B, C = (op.key for op in GRAPH.ops[:3])
LONE_S = dict.fromkeys(GRAPH.ids, 1.0)


def trace(*ops: tuple[str, int, float, float], pace: float = 1.0) -> Trace:
    """Ops on single cores: id, core, start, finish; then three one after the other that take `pace` seconds each."""
    alone = [(name, 0, 100 + i * pace, 100 + (i + 1) * pace) for i, name in enumerate(OTHERS)]
    placed = (Placement(op_id, (core,), 1, start, finish) for op_id, core, start, finish in [*ops, *alone])
    return Trace(4, "test", tuple(placed))


def observed(
    *ops: tuple[str, int, float, float], times: int = FEWEST_TIMES, pace: float = 1.0
) -> dict[tuple[str, str], float]:
    return observed_slowdowns([trace(*ops, pace=pace)] * times, GRAPH, LONE_S)


def test_a_pair_that_loses_side_by_side_is_found_with_its_slowdown() -> None:
    assert observed(("a", 0, 0, 2), ("b", 1, 0, 2)) == {(A, B): 2.0, (B, A): 2.0}


def test_only_the_time_side_by_side_is_blamed() -> None:
    # of a's 2 s 1.5 s were beside b, in which it did half a second of work
    found = observed(("a", 0, 0, 2), ("b", 1, 0.5, 2))
    assert found[A, B] == pytest.approx(3.0)
    assert found[B, A] == pytest.approx(1.5)


def test_a_loss_that_a_short_overlap_cannot_explain_is_not_blamed_on_it() -> None:
    found = observed(("a", 0, 0, 3), ("b", 1, 2.0, 3.0))
    assert (A, B) not in found
    assert found[B, A] == 1.0


def test_forecasts_that_are_too_short_all_round_are_no_interference() -> None:
    assert observed(("a", 0, 0, 2), ("b", 1, 0, 2), pace=2.0) == {(A, B): 1.0, (B, A): 1.0}


def test_where_too_few_ops_ran_alone_only_what_loses_more_than_most_is_bad() -> None:
    def crowded(finish_s: float) -> Trace:
        pairs = [("a", 0, 0, finish_s), ("b", 1, 0, finish_s), ("x", 0, 9, 11), ("y", 1, 9, 11), ("z", 2, 9, 11)]
        return Trace(4, "test", tuple(Placement(name, (core,), 1, start, end) for name, core, start, end in pairs))

    assert set(observed_slowdowns([crowded(2)] * FEWEST_TIMES, GRAPH, LONE_S).values()) == {1.0}
    found = observed_slowdowns([crowded(4)] * FEWEST_TIMES, GRAPH, LONE_S)
    assert found[A, B] == found[B, A] == 2.0


def test_the_one_beside_longest_is_blamed() -> None:
    found = observed(("a", 0, 0, 2), ("b", 1, 0, 1.9), ("c", 2, 0, 1.0))
    assert found[A, B] > 1.5
    assert (A, C) not in found


def test_a_loss_seen_once_among_many_steps_is_forgotten() -> None:
    usual, once = trace(("a", 0, 0, 1), ("b", 1, 0, 1)), trace(("a", 0, 0, 9), ("b", 1, 0, 9))
    assert observed_slowdowns([usual] * FEWEST_TIMES + [once], GRAPH, LONE_S) == {(A, B): 1.0, (B, A): 1.0}
    assert observed(("a", 0, 0, 2), ("b", 1, 0, 2), times=FEWEST_TIMES - 1) == {}


def test_ops_on_the_same_cores_and_ops_of_next_to_no_time_are_not_judged() -> None:
    assert observed(("a", 0, 0, 2), ("b", 0, 0, 2)) == {}
    short = observed_slowdowns([trace(("a", 0, 0, 2), ("b", 1, 0, 2))] * FEWEST_TIMES, GRAPH, {**LONE_S, "a": 1e-6})
    assert set(short) == {(B, A)}


def test_a_trace_of_another_graph_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'d' of the trace"):
        observed(("d", 0, 0, 1))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.floats(0, 5), st.floats(0, 5)),
        max_size=3,
        unique_by=lambda at: at[0],
    )
)
def test_slowdowns_lie_between_1_and_the_most_taken(ops: list[tuple[str, int, float, float]]) -> None:
    found = observed(*[(op_id, core, start, start + took) for op_id, core, start, took in ops])
    assert all(1.0 <= by <= LARGEST for by in found.values())
    assert all(one != other for one, other in found)


def test_the_table_learns_bad_pairs_and_unlearns_those_that_are_good_now() -> None:
    table = CoRunTable(Machine.uniform("two", 2), bad_pairs={(A, B): 2.0, (B, C): 3.0, (C, A): 4.0})
    assert learned(table, {(A, B): 1.2, (B, C): 1.6, (A, C): 1.9, (C, B): 1.4}).bad_pairs == {
        (B, C): 1.6,
        (A, C): 1.9,
        (C, A): 4.0,
    }
