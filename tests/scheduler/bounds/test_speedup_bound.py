"""What scheduling can gain at most: by hand and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.scheduler.random_problems import problem_of, problems
from threadcast.scheduler.bounds.ceiling import Limit, Reach
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.bounds.speedup_bound import LISTED, ceiling
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.engine_costs import EngineCosts
from threadcast.scheduler.problem.levels import levels, path_without

FLAT, LINEAR = {1: 1.0, 4: 1.0}, {1: 4.0, 2: 2.0, 4: 1.0}


def test_a_chain_of_ops_that_scale_is_held_by_its_path() -> None:
    report = ceiling(problem_of([LINEAR] * 3, [(0, 1), (1, 2)]))
    assert report.limit is Limit.CRITICAL_PATH
    assert not report.helps
    assert report.reach.parallelism == report.reach.fastest_parallelism == 1.0
    assert report.reach.at_most == pytest.approx(1.0)
    assert [holder.falls_s for holder in report.holders] == [1.0] * 3


def test_a_chain_of_ops_that_do_not_scale_is_told_apart() -> None:
    report = ceiling(problem_of([FLAT, FLAT, LINEAR], [(0, 1), (1, 2)]))
    assert report.limit is Limit.UNSCALED
    assert report.path_unscaled_share == report.reach.unscaled_share == pytest.approx(2 / 3)
    assert not report.helps


def test_ops_that_scale_to_all_cores_gain_nothing_side_by_side() -> None:
    report = ceiling(problem_of([LINEAR] * 4))
    assert report.limit is Limit.CORES
    assert not report.helps
    assert report.reach.parallelism == 4.0
    assert report.reach.at_most == pytest.approx(1.0)


def test_ops_beside_each_other_that_do_not_scale_gain_what_there_are_cores() -> None:
    report = ceiling(problem_of([FLAT] * 8))
    assert report.helps
    assert report.side_by_side_helps
    assert report.reach.at_most == pytest.approx(4.0)
    assert report.reach.unscaled_share == 1.0
    assert report.limit is Limit.CORES


def test_own_thread_counts_are_told_from_running_side_by_side() -> None:
    """A chain of one op that wants one thread and one that wants four: 2.5 s at the best single count, 2 s at both."""
    report = ceiling(problem_of([{1: 1.0, 4: 1.5}, {1: 4.0, 4: 1.0}], [(0, 1)]))
    assert report.helps
    assert not report.side_by_side_helps
    assert (report.reach.uniform_width, report.reach.uniform_s) == (4, 2.5)
    assert report.reach.at_most == pytest.approx(1.25)
    assert report.reach.side_by_side_at_most == pytest.approx(1.0)


def test_ops_shorter_than_their_hand_over_are_too_small() -> None:
    problem = problem_of([{1: 1e-6, 4: 1e-6}] * 8)
    report = ceiling(problem, costs=EngineCosts(op_s=6e-6, team_s=1e-4))
    assert report.limit is Limit.TOO_SMALL
    assert not report.helps
    assert ceiling(problem, costs=EngineCosts(0.0, 0.0)).helps


def test_a_graph_without_time_gains_nothing() -> None:
    report = ceiling(problem_of([{1: 0.0}] * 3, [(0, 1)]))
    assert not report.helps
    assert report.reach.at_most == report.reach.parallelism == 1.0
    assert report.holders == ()


def test_the_holders_are_those_without_which_the_bound_falls_most() -> None:
    """a - b - d is the path, 1 + 5 + 1 s; c beside b takes 3 s, so that without b the path falls by 2 s alone."""
    curves = [{1: 1.0}, {1: 5.0}, {1: 3.0}, {1: 1.0}]
    report = ceiling(problem_of(curves, [(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert [(holder.id, holder.falls_s) for holder in report.holders] == [("b", 2.0), ("a", 1.0), ("d", 1.0), ("c", 0)]
    assert [holder.on_path for holder in report.holders] == [True, True, True, False]


def test_where_cores_are_short_the_largest_ops_hold_the_makespan() -> None:
    report = ceiling(problem_of([{1: float(i)} for i in range(1, 21)], cores=2))
    assert len(report.holders) == LISTED
    assert [holder.narrow_s for holder in report.holders] == list(range(20, 10, -1))
    assert report.holders[0].falls_s == 10.0


@settings(max_examples=150)
@given(problem=problems())
def test_the_path_without_an_op_is_that_of_the_graph_in_which_it_takes_no_time(problem: Problem) -> None:
    seconds = problem.times.seconds.min(axis=1)
    found = path_without(problem.graph, seconds)
    for op in range(len(seconds)):
        without = np.where(np.arange(len(seconds)) == op, 0.0, seconds)
        assert found[op] == pytest.approx(levels(problem.graph, without).max())


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_no_plan_on_cores_of_its_own_gains_more_than_the_ceiling(problem: Problem) -> None:
    reach, bound_s = ceiling(problem).reach, lower_bounds(problem).best_s
    assert reach.bound_s == bound_s
    assert reach.fastest_work_s <= reach.uniform_s * (1 + 1e-9)
    assert reach.side_by_side_at_most * (1 + 1e-9) >= 1
    assert reach.side_by_side_at_most <= reach.fastest_parallelism * (1 + 1e-9)
    for name in ("sequential", "cpa", "lp_rounding"):
        assert reach.uniform_s <= reach.at_most * plan(problem, policy=name).makespan_s * (1 + 1e-9)
    assert plan(problem, policy="sequential").makespan_s >= reach.uniform_s * (1 - 1e-9)


def test_a_reach_is_json() -> None:
    reach = Reach(1, 2.0, 1.0, 2.0, 1.0, 1, 3.0, 1.5, 0.0)
    assert reach.to_json()["at_most"] == 2.0
    assert reach.to_json()["parallelism"] == 2.0
