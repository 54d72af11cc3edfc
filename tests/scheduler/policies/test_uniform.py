"""The framework's settings: its queue, inter x intra, and the grid over them."""

from __future__ import annotations

import pytest

from tests.scheduler.random_problems import problem_of
from threadcast.core import Trace
from threadcast.core.errors import InvalidInput, PlanError
from threadcast.scheduler.policies import create
from threadcast.scheduler.policies.manual_grid import ManualGrid
from threadcast.scheduler.policies.uniform import Uniform
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.scheduler.simulation.simulator import makespan_s, simulate


def spans(trace: Trace) -> dict[str, tuple[float, float, int]]:
    return {op.id: (op.start_s, op.finish_s, op.threads) for op in trace.ops}


def test_fifo_runs_ops_in_the_order_in_which_they_become_ready_on_all_cores() -> None:
    """d is listed before c but becomes ready after it."""
    problem = problem_of([{1: 9.0, 4: 1.0}] * 5, [(0, 3), (1, 4)])
    trace = simulate(create("fifo", problem))
    assert [op.id for op in trace.ops] == ["a", "b", "c", "d", "e"]
    assert {op.threads for op in trace.ops} == {4}
    assert trace.makespan_s == 5.0


def test_uniform_runs_inter_ops_at_once_on_cores_of_their_own() -> None:
    problem = problem_of([{2: 1.0}] * 3)
    trace = simulate(Uniform(problem, inter=2, intra=2))
    assert spans(trace) == {"a": (0, 1, 2), "b": (0, 1, 2), "c": (1, 2, 2)}
    assert [op.cores for op in trace.ops] == [(0, 1), (2, 3), (0, 1)]


def test_teams_lie_on_separate_cores_before_they_lie_on_each_other() -> None:
    teams = Uniform(problem_of([{1: 1.0}] * 9, cores=4), inter=4, intra=2).teams
    assert [(team.cores, team.hardware_thread) for team in teams] == [
        ((0, 1), 0),
        ((2, 3), 0),
        ((0, 1), 1),
        ((2, 3), 1),
    ]


def test_teams_that_overlap_in_part_never_use_a_hardware_thread_twice() -> None:
    teams = Uniform(problem_of([{1: 1.0}] * 9, cores=5), inter=5, intra=3).teams
    used = [(core, team.hardware_thread) for team in teams for core in team.cores]
    assert len(set(used)) == len(used) == 15


def test_oversubscribed_ops_share_their_cores() -> None:
    """Two ops of all four cores: half the pace each, times the gain of 1.03 where there is hyper-threading."""
    plain = problem_of([{4: 1.0}] * 2)
    assert simulate(Uniform(plain, inter=2, intra=4)).makespan_s == 2.0
    hyper_threaded = problem_of([{4: 1.0}] * 2, threads_per_core=2)
    assert simulate(Uniform(hyper_threaded, inter=2, intra=4)).makespan_s == pytest.approx(2.0 / 1.03)


def test_more_threads_than_cores_fill_hardware_threads() -> None:
    problem = problem_of([{4: 1.0}] * 2, threads_per_core=4)
    policy = Uniform(problem, inter=2, intra=8)
    assert [team.hardware_thread for team in policy.teams] == [0, 2]
    assert {(op.threads, len(op.cores)) for op in simulate(policy).ops} == {(8, 4)}


def test_an_op_runs_on_as_many_cores_as_its_curve_offers() -> None:
    problem = problem_of([{1: 3.0, 2: 2.0}, {1: 1.0, 4: 0.5}, {1: 0.0, 4: 0.0}], kinds="xyv")
    assert {op.id: op.threads for op in simulate(create("fifo", problem)).ops} == {"a": 2, "b": 4, "c": 1}


def test_a_width_below_an_ops_first_count_is_refused() -> None:
    with pytest.raises(PlanError, match="op 'b' starts at 3 threads; teams of 2"):
        Uniform(problem_of([{1: 1.0, 4: 1.0}, {3: 1.0}]), inter=1, intra=2)
    for wrong in ({"inter": 0, "intra": 1}, {"inter": 1, "intra": 0}):
        with pytest.raises(InvalidInput, match="=0: at least 1"):
            Uniform(problem_of([{1: 1.0}]), **wrong)


def test_the_grid_finds_its_best_setting() -> None:
    curve = {1: 4.0, 2: 2.2, 4: 1.8}
    problem = problem_of([curve] * 6, [(0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (2, 5)], threads_per_core=2)
    grid = ManualGrid(problem, inter=(1, 2, 4), intra=(1, 2, 4, 8))
    by_hand = {
        (inter, intra): makespan_s(Uniform(problem, inter=inter, intra=intra))
        for inter in (1, 2, 4)
        for intra in (1, 2, 4, 8)
    }
    assert makespan_s(grid) == min(by_hand.values()) == by_hand[grid.setting]


def test_the_grid_uses_no_hardware_thread_that_a_core_has_not() -> None:
    """Three teams of two on three cores have six threads, but none is free on both cores of the third team."""
    problem = problem_of([{2: 1.0}] * 3, cores=3, threads_per_core=2)
    with pytest.raises(InvalidInput, match="none fits the 6 hardware threads"):
        ManualGrid(problem, inter=(3,), intra=(2,), oversubscribed=False)
    trace = simulate(ManualGrid(problem, inter=(1, 2, 3), intra=(2,), oversubscribed=False))
    check_schedule(problem.graph, trace, machine=problem.machine)


def test_the_grid_tries_settings_that_only_hyper_threads_make_best() -> None:
    """Two ops of all cores take 2 s one after the other, and 2 / 1.03 s side by side."""
    problem = problem_of([{4: 1.0}] * 2, threads_per_core=2)
    grid = ManualGrid(problem, inter=(1, 2), intra=(4,))
    assert grid.setting == (2, 4)
    assert makespan_s(grid) == pytest.approx(2.0 / 1.03)


def test_the_grid_leaves_out_widths_that_an_op_cannot_have() -> None:
    assert ManualGrid(problem_of([{3: 1.0, 4: 0.9}])).setting == (1, 4)
    with pytest.raises(PlanError, match="too narrow"):
        ManualGrid(problem_of([{3: 1.0}]), intra=(1, 2))
    with pytest.raises(InvalidInput, match="at least one of each"):
        ManualGrid(problem_of([{3: 1.0}]), inter=())
