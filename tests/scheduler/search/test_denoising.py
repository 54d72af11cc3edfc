"""Denoised curves are nearer to the true ones, and only uncertain ones are denoised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.waiting import HANGS_S
from threadcast.core import Case, CurveTable, Machine, Op, OpGraph, Source, TensorSpec
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.problem.times import LONGEST_S
from threadcast.scheduler.search.denoising import FEWEST_CURVES, denoised
from threadcast.scheduler.simulation.simulator import simulate

MACHINE = Machine.uniform("m", 16)
COUNTS = (1, 2, 4, 8, 16)


def true_seconds(ops: int) -> np.ndarray:
    """Curves of two shapes (what scales and what does not) in different amounts."""
    random = np.random.default_rng(0)
    share = random.uniform(0.0, 0.6, ops)
    work = random.uniform(1e-4, 1e-2, ops)
    return np.asarray(work[:, None] * (share[:, None] + (1 - share[:, None]) / np.array(COUNTS)))


def problem_of(seconds: np.ndarray, half_width: float, machine: Machine = MACHINE) -> Problem:
    graph = OpGraph(
        tuple(f"op{i}" for i in range(len(seconds))),
        tuple(Op("mul", (TensorSpec((i + 1,), "float32"),)) for i in range(len(seconds))),
    )
    source = np.full(seconds.shape, list(Source).index(Source.MEASURED), dtype=np.int8)
    curves = CurveTable(
        tuple(map(Case, COUNTS)), seconds, seconds * (1 - half_width), seconds * (1 + half_width), source
    )
    return Problem(graph, curves, machine)


def noisy(seconds: np.ndarray, error: float) -> np.ndarray:
    return seconds * np.random.default_rng(1).uniform(1 - error, 1 + error, seconds.shape)


def test_errors_become_smaller() -> None:
    true = true_seconds(60)
    wrong = noisy(true, 0.2)
    found = denoised(problem_of(wrong, 0.2))
    assert found is not None
    before, after = (np.abs(np.log(seconds / true)).mean() for seconds in (wrong, found.curves.seconds))
    assert after < 0.75 * before


@pytest.mark.usefixtures("few_moves")
def test_plans_for_them_are_shorter_in_truth() -> None:
    true = problem_of(true_seconds(60), 0.0)
    wrong = problem_of(noisy(true_seconds(60), 0.2), 0.2)
    certain = problem_of(noisy(true_seconds(60), 0.2), 0.0)

    def takes(planned_for: Problem) -> float:
        made = plan(planned_for, policy="search", budget_s=HANGS_S)
        return simulate(PlanReplay(planned_for, plan=made), true_curves=true.curves).makespan_s

    assert takes(wrong) < takes(certain)


@pytest.mark.parametrize("half_width", [0.0, 0.05])
def test_certain_curves_stay(half_width: float) -> None:
    assert denoised(problem_of(true_seconds(60), half_width)) is None
    assert denoised(problem_of(true_seconds(FEWEST_CURVES - 1), 0.2)) is None, "and a few uncertain ones"


def test_ops_of_no_time_stay_and_do_not_keep_others_from_being_denoised() -> None:
    seconds = noisy(true_seconds(30), 0.2)
    without = denoised(problem_of(seconds[1:], 0.2))
    seconds[0] = 0.0
    found = denoised(problem_of(seconds, 0.2))
    assert found is not None
    assert without is not None
    assert not found.curves.seconds[0].any()
    np.testing.assert_allclose(found.curves.seconds[1:], without.curves.seconds)
    assert denoised(problem_of(np.zeros((30, len(COUNTS))), 0.2)) is None


def test_counts_that_an_op_does_not_offer_stay_so() -> None:
    seconds = noisy(true_seconds(30), 0.2)
    seconds[3, 3:] = np.inf
    found = denoised(problem_of(seconds, 0.2))
    assert found is not None
    np.testing.assert_array_equal(np.isfinite(found.curves.seconds), np.isfinite(seconds))


def test_the_longest_times_that_curves_may_hold_are_denoised() -> None:
    seconds = noisy(true_seconds(30), 0.2)
    found = denoised(problem_of(np.minimum(seconds * LONGEST_S / np.median(seconds), LONGEST_S), 0.2))
    assert found is not None
    assert found.curves.seconds.max() <= LONGEST_S


def test_ops_of_which_few_were_measured_at_the_same_counts_stay() -> None:
    given = problem_of(noisy(true_seconds(30), 0.2), 0.2)
    source = given.curves.source.copy()
    source[: FEWEST_CURVES - 1, 4] = list(Source).index(Source.INTERPOLATED)
    found = denoised(Problem(given.graph, replace(given.curves, source=source), given.machine))
    assert found is not None
    changed = (found.curves.seconds != given.curves.seconds).any(axis=1)
    np.testing.assert_array_equal(changed, np.arange(30) >= FEWEST_CURVES - 1)


@pytest.mark.usefixtures("few_moves")
def test_a_plan_tells_the_times_of_the_curves_that_it_was_given() -> None:
    given = problem_of(noisy(true_seconds(30), 0.2), 0.2)
    made = plan(given, budget_s=HANGS_S)
    on = given.times.on
    by_id = made.by_id()
    for i, op_id in enumerate(given.graph.ids):
        placed = by_id[op_id]
        assert placed.finish_s - placed.start_s == pytest.approx(on(i, placed.cores, placed.threads))
    assert made.lower_bound_s <= made.makespan_s
