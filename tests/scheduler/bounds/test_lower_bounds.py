"""Lower bounds: by hand, and never above the best of all schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.brute_force import best_makespan_s
from tests.scheduler.random_problems import curves, problem_of, problems
from threadcast.scheduler.bounds.allotment_lp import relax
from threadcast.scheduler.bounds.envelopes import Envelopes
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem, names
from threadcast.scheduler.problem.levels import levels


def test_the_critical_path_takes_each_op_at_its_fastest() -> None:
    problem = problem_of([{1: 4.0, 2: 3.0, 4: 3.5}, {1: 2.0}, {1: 1.0}], [(0, 1)])
    assert lower_bounds(problem).critical_path_s == 5.0


def test_the_area_takes_each_op_at_its_most_frugal() -> None:
    """8 + 6 core-seconds (two threads at 3 s, not one at 6.5 s) over four cores."""
    problem = problem_of([{1: 8.0, 4: 2.5}, {1: 6.5, 2: 3.0}])
    bounds = lower_bounds(problem, lp=False)
    assert bounds.area_s == 3.5
    assert bounds.best_s == 3.5


def test_the_relaxation_balances_path_and_area() -> None:
    """Two alike of 4 s, or 3 s on two cores: on three cores at x s each has 4 + 2 (4 - x) core-seconds, so that
    2 (12 - 2 x) / 3 = x at 24 / 7 s, above the path's 3 s and the area's 8 / 3 s."""
    bounds = lower_bounds(problem_of([{1: 4.0, 2: 3.0}] * 2, cores=3))
    assert (bounds.critical_path_s, bounds.area_s) == (3.0, pytest.approx(8 / 3))
    assert 24 / 7 * 0.999 < bounds.best_s < 24 / 7


def test_ops_without_time_have_a_bound_of_nothing() -> None:
    assert lower_bounds(problem_of([{1: 0.0}] * 3, [(0, 1)])).best_s == 0.0


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_the_relaxation_is_nearly_met_by_its_own_fractional_widths(problem: Problem) -> None:
    """From below by a flow and from above by a point: its optimum lies between them."""
    relaxed, envelopes = relax(problem), Envelopes.of(problem.times)
    path_s = float(levels(problem.graph, relaxed.seconds).max())
    area_s = float(envelopes.work_at(relaxed.seconds).sum()) / len(problem.machine)
    bound_s = max(relaxed.bound_s, lower_bounds(problem, lp=False).best_s)
    assert bound_s <= max(path_s, area_s) * (1 + 1e-8)
    assert bound_s >= max(path_s, area_s) * 0.9 - 1e-12


@settings(deadline=None)
@given(problem=problems())
def test_no_width_lies_below_its_envelope(problem: Problem) -> None:
    times, envelopes = problem.times, Envelopes.of(problem.times)
    for seconds, threads in zip(times.seconds.T, times.counts):
        offered = np.isfinite(seconds)
        at = np.clip(seconds, envelopes.seconds[np.arange(len(seconds)), envelopes.last], envelopes.seconds[:, 0])
        least = envelopes.work_at(at)[offered]
        assert np.all(least <= seconds[offered] * threads * (1 + 1e-12))


@settings(max_examples=60, deadline=None)
@given(problem=problems(), data=st.data())
def test_the_least_cost_is_that_of_some_width(problem: Problem, data: st.DataObject) -> None:
    times, envelopes = problem.times, Envelopes.of(problem.times)
    price = np.array([data.draw(st.floats(0, 50)) for _ in range(len(envelopes))])
    each = (price[:, None] + np.asarray(times.counts)) * times.seconds
    assert envelopes.least_cost(price) == pytest.approx(each.min(axis=1))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_bound_is_above_the_best_schedule_and_no_plan_below(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    edges = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    problem = problem_of([data.draw(curves()) for _ in range(count)], sorted(edges), cores=data.draw(st.integers(1, 4)))
    best_s = best_makespan_s(problem)
    bounds = lower_bounds(problem)
    assert bounds.allotment_lp_s is not None
    assert bounds.allotment_lp_s <= best_s
    assert bounds.best_s <= best_s * (1 + 1e-12)
    for name in set(names()) - {"uniform"}:
        planned = plan(problem, policy=name)
        assert planned.makespan_s >= best_s * (1 - 1e-9)
        assert planned.lower_bound_s <= best_s * (1 + 1e-9)
