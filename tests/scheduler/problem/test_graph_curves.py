"""Curves that a graph file brings along."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.scheduler.random_problems import graph_of
from threadcast.core import Affinity, Case, Machine, OpGraph, Source
from threadcast.core.errors import PlanError
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.graph_curves import curves_of, farthest_count

MEASURED, INTERPOLATED = list(Source).index(Source.MEASURED), list(Source).index(Source.INTERPOLATED)


def test_given_points_are_kept_and_marked_as_measured() -> None:
    table = curves_of(graph_of([{1: 0.1, 2: 0.07}]), Machine.uniform("m", 2))
    assert table.seconds.tolist() == [[0.1, 0.07]]
    assert table.source.tolist() == [[MEASURED, MEASURED]]
    assert table.model == "file"


def test_points_in_between_are_interpolated_in_log_log_and_marked_so() -> None:
    """On a straight line in log-log from 1 s at 1 thread to 1/4 s at 4 there is 1/2 s at 2."""
    table = curves_of(graph_of([{1: 1.0, 4: 0.25}]), Machine.uniform("m", 4))
    assert table.seconds[0].tolist() == pytest.approx([1.0, 0.5, 1 / 3, 0.25])
    assert table.source[0].tolist() == [MEASURED, INTERPOLATED, INTERPOLATED, MEASURED]
    to_nothing = curves_of(graph_of([{1: 2.0, 3: 0.0}]), Machine.uniform("m", 3))
    assert to_nothing.seconds[0].tolist() == [2.0, 1.0, 0.0], "linearly where a time is 0"


def test_nothing_is_guessed_outside_the_given_counts() -> None:
    graph = graph_of([{2: 2.0, 3: 1.5}, {1: 1.0, 5: 0.5}])
    table = curves_of(graph, Machine.uniform("m", 8))
    assert [case.threads for case in table.cases] == [1, 2, 3, 4, 5], "no op reaches 6 to 8"
    assert table.seconds[0].tolist() == [math.inf, 2.0, 1.5, math.inf, math.inf]
    assert farthest_count(table) == 5


def test_given_counts_are_cases_where_the_machine_has_none_of_so_many_threads() -> None:
    machine = Machine.uniform("two groups", 8, group_size=4)
    graph = graph_of([{1: 8.0, 3: 3.0, 6: 1.0, 99: 0.1}, {1: 8.0, 8: 2.0}])
    table = curves_of(graph, machine)
    assert not {3, 5, 6, 7} & {case.threads for case in machine.cases()}
    assert sorted({case.threads for case in table.cases}) == [1, 2, 3, 4, 6, 8]
    at = {case: (table.seconds[0, i], table.source[0, i]) for i, case in enumerate(table.cases)}
    assert [at[Case(1, Affinity.SPREAD)], at[Case(3)], at[Case(6)]] == [
        (8.0, MEASURED),
        (3.0, MEASURED),
        (1.0, MEASURED),
    ]
    assert at[Case(4)][1] == INTERPOLATED
    alone = graph_of([{1: 8.0, 3: 3.0, 6: 1.0}])
    made = plan(Problem(alone, curves_of(alone, machine), machine))
    assert [(op.threads, op.duration_s) for op in made.ops] == [(6, 1.0)]


def test_a_graph_with_curves_for_some_ops_only_is_refused() -> None:
    graph = graph_of([{1: 1.0}, {1: 1.0}])
    partial = OpGraph(graph.ids, graph.ops, graph.edges, {"a": {1: 1.0}})
    with pytest.raises(PlanError, match="1 of 2 ops have no curve in the graph, the first is 'b'"):
        curves_of(partial, Machine.uniform("m", 2))


@given(
    curve=st.dictionaries(st.integers(1, 12), st.floats(1e-9, 1e3), min_size=1, max_size=5),
    cores=st.integers(1, 16),
)
def test_interpolated_points_lie_between_their_neighbours(curve: dict[int, float], cores: int) -> None:
    assume(min(curve) <= cores)
    graph = graph_of([curve, {1: 1.0}])
    row = curves_of(graph, Machine.uniform("m", cores))
    for case, seconds in zip(row.cases, row.seconds[0].tolist()):
        below = [n for n in curve if n <= case.threads]
        above = [n for n in curve if n >= case.threads]
        if not below or not above:
            assert seconds == math.inf
        else:
            ends = sorted((curve[max(below)], curve[min(above)]))
            assert ends[0] * (1 - 1e-9) <= seconds <= ends[1] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("curves", "cores", "why"),
    [
        ([], 2, "no ops"),
        ([{1: 1.0}, {4: 1.0, 8: 0.5}], 2, "op 'b' is given for 4 to 8 threads, where 2 cores have no case"),
        ([{1: 1e308}, {1: 1e308}], 1, r"at most 1e\+12, got 1e\+308; check their unit"),
    ],
)
def test_curves_that_cannot_be_planned_are_refused(curves: list[dict[int, float]], cores: int, why: str) -> None:
    graph, machine = graph_of(curves), Machine.uniform("m", cores)
    with pytest.raises(PlanError, match=why):
        Problem(graph, curves_of(graph, machine), machine)


def test_a_problem_on_fewer_cores_than_a_curve_needs_is_refused() -> None:
    graph = graph_of([{1: 1.0}, {4: 1.0, 8: 0.5}])
    table = curves_of(graph, Machine.uniform("m", 8))
    with pytest.raises(PlanError, match="op 'b' has no case that fits 2 cores"):
        Problem(graph, table, Machine.uniform("m", 2))
