"""Graphi's levels, order, executors and light executor."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scheduler.random_problems import graph_of, problem_of
from threadcast.core import Affinity, Case, CurveTable, Machine
from threadcast.core.errors import InvalidInput, PlanError
from threadcast.scheduler.policies import Launch, Problem, Running, State
from threadcast.scheduler.policies.critical_path import CriticalPath, executor_counts
from threadcast.scheduler.problem.levels import levels
from threadcast.scheduler.simulation.simulator import makespan_s, simulate

DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4)]


def test_a_level_is_the_longest_path_to_the_end() -> None:
    """a=1, b=5, c=2, d=3, e=7: d 3, e 7, b 5+3, c 2+7, a 1+9."""
    graph = graph_of([{1: 1.0}] * 5, DIAMOND)
    seconds = np.array([1.0, 5.0, 2.0, 3.0, 7.0])
    assert levels(graph, seconds).tolist() == [10.0, 8.0, 9.0, 3.0, 7.0]
    both = levels(graph, np.stack([seconds, np.ones(5)], axis=1))
    assert both[:, 0].tolist() == [10.0, 8.0, 9.0, 3.0, 7.0]
    assert both[:, 1].tolist() == [3.0, 2.0, 2.0, 1.0, 1.0]


def test_the_highest_level_goes_first() -> None:
    """One executor: c (level 9) before b (8); e (7) before b; d last."""
    seconds = [1.0, 5.0, 2.0, 3.0, 7.0]
    problem = problem_of([{1: s} for s in seconds], DIAMOND, cores=1)
    trace = simulate(CriticalPath(problem, executors=1))
    assert [op.id for op in trace.ops] == ["a", "c", "b", "e", "d"]


def test_the_number_of_executors_is_the_best_of_those_tried() -> None:
    """Eight independent ops that do not scale: as many executors as cores. One that scales perfectly: one."""
    flat = problem_of([dict.fromkeys(range(1, 9), 1.0)] * 8, cores=8)
    assert len(CriticalPath(flat).teams) == 8
    scaling = problem_of([{n: 8.0 / n for n in range(1, 9)}], cores=8)
    assert len(CriticalPath(scaling).teams) == 1
    for problem in (flat, scaling):
        tried = [makespan_s(CriticalPath(problem, executors=n)) for n in executor_counts(8, 1)]
        assert makespan_s(CriticalPath(problem)) == min(tried)


def test_powers_of_two_groups_and_cores_are_tried() -> None:
    assert executor_counts(68, 34) == [1, 2, 4, 8, 16, 32, 34, 64, 68]


def test_executors_are_equal_and_share_no_cache_group() -> None:
    problem = problem_of([{1: 1.0}], cores=68, group_size=2)
    policy = CriticalPath(problem, executors=8)
    assert {len(team.cores) for team in policy.teams} == {8}
    tiles = [{core // 2 for core in team.cores} for team in policy.teams]
    assert sum(map(len, tiles)) == len(set.union(*tiles))


def test_an_op_whose_curve_ends_early_runs_on_part_of_its_executor() -> None:
    problem = problem_of([{1: 4.0, 2: 2.0}, {1: 8.0, 4: 3.0}], cores=4)
    assert {op.id: op.cores for op in simulate(CriticalPath(problem, executors=1)).ops} == {
        "a": (0, 1),
        "b": (0, 1, 2, 3),
    }


def test_the_light_executor_takes_tiny_ops_on_the_last_core() -> None:
    tiny = dict.fromkeys((1, 2), 5e-06)
    problem = problem_of([{1: 1.0, 2: 0.6}, tiny, {1: 1.0, 2: 0.6}, tiny], cores=5)
    policy = CriticalPath(problem, executors=2, light_executor=True)
    trace = simulate(policy).by_id()
    assert trace["b"].cores == trace["d"].cores == (4,)
    assert trace["d"].start_s == trace["b"].finish_s
    assert {trace["a"].cores, trace["c"].cores} == {(0, 1), (2, 3)}


def test_a_tiny_op_goes_to_an_executor_while_the_light_one_is_busy() -> None:
    tiny = {1: 5e-6}
    problem = problem_of([tiny, tiny], cores=3)
    policy = CriticalPath(problem, executors=2, light_executor=True)
    busy_light = State(0.0, (1,), (0, 1), (Running(0, (2,), 1, 0.0, 5e-6),))
    assert policy.decide(busy_light) == [Launch(1, (0,), 1)]


def test_all_settings_are_tried_where_the_light_executor_takes_ops() -> None:
    """One wide team for the chain, while the light executor runs what is small: no bound of the teams says that."""
    chain, tiny = {1: 300e-6, 3: 100e-6}, {1: 9e-6, 3: 90e-6}
    problem = problem_of([chain] * 10 + [tiny] * 100, [(i, i + 1) for i in range(9)])
    assert len(CriticalPath(problem, light_executor=True).teams) == 1


def test_settings_that_cannot_be_are_refused() -> None:
    problem = problem_of([{1: 1.0}], cores=2)
    with pytest.raises(InvalidInput, match="executors=3"):
        CriticalPath(problem, executors=3)
    with pytest.raises(InvalidInput, match="core of its own"):
        CriticalPath(problem_of([{1: 1.0}], cores=1), light_executor=True)
    with pytest.raises(PlanError, match="starts at 2 threads"):
        CriticalPath(problem_of([{2: 1.0}], cores=2), executors=2)


def test_levels_hold_the_time_of_the_affinity_that_the_executors_have() -> None:
    """Two threads that share a tile take 3 s; one a tile would take 2 s, but executors are whole tiles."""
    machine = Machine.uniform("tiles", 4, group_size=2)
    cases = (Case(2, Affinity.COMPACT), Case(2, Affinity.SPREAD))
    seconds = np.array([[3.0, 2.0]])
    table = CurveTable(cases, seconds, seconds, seconds, np.zeros((1, 2), dtype=np.int8))
    policy = CriticalPath(Problem(graph_of([{1: 1.0}]), table, machine), executors=2)
    assert policy.level.tolist() == [3.0]
    assert simulate(policy).makespan_s == 3.0
