"""Exact plans: against all schedules of small graphs, and legal whatever the graph."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.brute_force import best_makespan_s
from tests.scheduler.random_problems import curves, problem_of, problems
from tests.waiting import HANGS_S
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.search.cp_sat import solve
from threadcast.scheduler.simulation.checker import check_schedule

pytest.importorskip("ortools")

TWO_CHAINS = problem_of(
    [{1: 4.0, 2: 2.5}, {1: 3.0, 2: 2.0}, {1: 5.0, 2: 2.6, 4: 2.0}, {1: 1.0}, {1: 0.0}, {1: 6.0, 4: 2.0}],
    [(0, 1), (2, 3), (3, 4)],
)


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    count = draw(st.integers(1, 5))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    edges = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    return problem_of([draw(curves()) for _ in range(count)], sorted(edges), cores=draw(st.integers(1, 4)))


@settings(max_examples=60, deadline=None)
@given(problem=small_problems(), closing=st.booleans())
def test_its_bound_is_never_above_the_best_schedule_and_its_plan_is_one(problem: Problem, closing: bool) -> None:
    best_s = best_makespan_s(problem)
    result = solve(problem, budget_s=HANGS_S, effort_s=0.5, hint=plan(problem, policy="fifo"), closing=closing)
    assert result.plan is not None
    check_schedule(problem.graph, result.plan, machine=problem.machine)
    assert result.lower_bound_s <= best_s * (1 + 1e-12)
    assert result.plan.makespan_s >= best_s * (1 - 1e-12)
    if result.optimal:
        assert result.plan.makespan_s == pytest.approx(best_s, rel=1e-5)


def test_six_ops_are_planned_as_well_as_by_trying_everything() -> None:
    result = solve(TWO_CHAINS, budget_s=HANGS_S, effort_s=10)
    assert result.plan is not None
    assert result.optimal
    assert result.plan.makespan_s == pytest.approx(best_makespan_s(TWO_CHAINS))


@settings(max_examples=15, deadline=None)
@given(problem=problems(), seed=st.integers(0, 3))
def test_its_plans_are_legal_and_keep_their_bound_and_their_hint(problem: Problem, seed: int) -> None:
    hint = plan(problem, policy="critical_path")
    result = solve(problem, budget_s=HANGS_S, effort_s=0.5, seed=seed, hint=hint)
    assert result.plan is not None
    check_schedule(problem.graph, result.plan, machine=problem.machine)
    assert lower_bounds(problem).best_s * (1 - 1e-9) <= result.lower_bound_s <= result.plan.makespan_s
    assert result.plan.makespan_s <= hint.makespan_s * (1 + 1e-12)
    assert result.plan.lower_bound_s == result.lower_bound_s


def test_a_seed_gives_the_same_result_again() -> None:
    problem = problem_of([{1: 3.0 + i, 2: 1.9 + i / 2, 4: 1.3 + i / 3} for i in range(6)], [(0, 4), (1, 5)])
    first, second = (solve(problem, budget_s=HANGS_S, effort_s=20, seed=7) for _ in range(2))
    assert first == second


def test_ctrl_c_still_raises_afterwards() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        solve(TWO_CHAINS, budget_s=2)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_plan_of_shared_cores_may_be_the_hint() -> None:
    problem = problem_of([{1: 2.0}] * 4, cores=1, threads_per_core=2)
    result = solve(problem, budget_s=HANGS_S, effort_s=5, hint=plan(problem, policy="uniform", inter=2, intra=1))
    assert result.plan is not None
    assert result.plan.makespan_s == 8.0
    assert result.optimal


def test_times_far_apart_are_kept_apart() -> None:
    """A millionth of a second beside a quarter of an hour is one of the makespan's ten-millionths or more."""
    problem = problem_of([{1: 1000.0}, {1: 1e-6}, {1: 900.0}, {1: 1e-6}], [(1, 2), (2, 3)], cores=2)
    result = solve(problem, budget_s=HANGS_S, effort_s=5)
    assert result.optimal
    assert result.plan is not None
    assert result.plan.makespan_s == 1000.0


def test_impossible_requests_are_refused() -> None:
    problem = problem_of([{1: 1.0}])
    with pytest.raises(InvalidInput, match="budget_s=0"):
        solve(problem, budget_s=0)
    with pytest.raises(InvalidInput, match="other ops"):
        solve(problem, budget_s=1, hint=plan(TWO_CHAINS, policy="fifo"))
