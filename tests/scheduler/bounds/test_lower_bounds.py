"""Lower bounds: by hand, and never above the best of all schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.brute_force import best_makespan_s
from tests.scheduler.random_problems import curves, problem_of, problems
from threadcast.scheduler.bounds import allotment_lp
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
    assert bounds.best_s == pytest.approx(24 / 7, rel=1e-8)
    assert bounds.best_s < 24 / 7


def test_ops_without_time_have_a_bound_of_nothing() -> None:
    assert lower_bounds(problem_of([{1: 0.0}] * 3, [(0, 1)])).best_s == 0.0


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_a_flow_is_never_above_the_relaxation_that_it_bounds(problem: Problem) -> None:
    exact, flow = relax(problem, exact_ops=100), relax(problem, exact_ops=0)
    assert exact.exact
    assert flow.bound_s <= exact.bound_s * (1 + 1e-8) + 1e-12
    simple_s = lower_bounds(problem, lp=False).best_s
    assert exact.bound_s >= simple_s * (1 - 1e-8)
    assert max(flow.bound_s, simple_s) >= exact.bound_s * 0.9


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_the_relaxation_is_met_by_its_own_fractional_widths(problem: Problem) -> None:
    """From below by a flow and from above by a point: what lies between them is the solver's tolerance."""
    relaxed, envelopes = relax(problem), Envelopes.of(problem.times)
    path_s = float(levels(problem.graph, relaxed.seconds).max())
    area_s = float(envelopes.work_at(relaxed.seconds).sum()) / len(problem.machine)
    assert max(path_s, area_s) == pytest.approx(relaxed.bound_s, rel=1e-6, abs=1e-12)


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


@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_without_scipy_there_is_a_bound_all_the_same(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allotment_lp, "find_spec", lambda name: None)
        assert relax(problem).bound_s == relax(problem, exact_ops=0).bound_s


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
    assert relax(problem, exact_ops=0).bound_s <= best_s
    for name in set(names()) - {"uniform"}:
        planned = plan(problem, policy=name)
        assert planned.makespan_s >= best_s * (1 - 1e-9)
        assert planned.lower_bound_s <= best_s * (1 + 1e-9)


def wide_problem(ops: int, cores: int) -> Problem:
    """Two chains of ops by Amdahl's law, so that every count is a corner; paths and area are about as long."""
    random = np.random.default_rng(0)
    made = []
    for seconds, serial in zip(random.lognormal(0, 1, ops), random.uniform(0.002, 0.02, ops)):
        made.append({n: float(seconds * (serial + (1 - serial) / n)) for n in range(1, cores + 1)})
    return problem_of(made, [(i, i + 2) for i in range(ops - 2)], cores=cores)


def test_the_relaxation_is_solved_with_some_of_many_corners_and_its_bound_holds_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solved, corners = allotment_lp._solved, list[int]()

    def watched(problem: Problem, envelopes: Envelopes) -> Any:
        corners.append(envelopes.seconds.shape[1])
        return solved(problem, envelopes)

    monkeypatch.setattr(allotment_lp, "_solved", watched)
    thin = relax(wide_problem(6, 300))
    monkeypatch.setattr(allotment_lp, "MOST_CORNERS", 10_000)
    whole = relax(wide_problem(6, 300))
    assert corners[0] <= 128 < corners[1]
    assert not thin.exact
    assert whole.exact
    assert 0.999 * whole.bound_s <= thin.bound_s <= whole.bound_s * (1 + 1e-8)
    flow = relax(wide_problem(6, 300), exact_ops=0)
    monkeypatch.setattr(allotment_lp, "MOST_CORNERS", 128)
    assert flow.bound_s * 0.99 <= relax(wide_problem(6, 300), exact_ops=0).bound_s <= whole.bound_s * (1 + 1e-8)


def test_thinned_envelopes_lie_on_the_whole_ones_or_above() -> None:
    whole = Envelopes.of(wide_problem(3, 200).times)
    thin = whole.thinned(20)
    assert thin.seconds.shape[1] <= 20
    assert whole.thinned(whole.seconds.shape[1]) is whole
    row = np.arange(3)
    assert np.array_equal(thin.seconds[:, 0], whole.seconds[:, 0])
    assert np.array_equal(thin.seconds[row, thin.last], whole.seconds[row, whole.last])
    for share in np.linspace(0, 1, 50):
        at = share * whole.seconds[:, 0] + (1 - share) * whole.seconds[row, whole.last]
        assert np.all(thin.work_at(at) >= whole.work_at(at) * (1 - 1e-12))
