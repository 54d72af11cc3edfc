"""Worlds scatter as the forecasts' intervals say, and plans take longer in bad ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.scheduler.random_problems import problem_of
from threadcast.core import Op
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.search.robust import log_deviation, percentiles_s, resampled


def uncertain(problem: Problem, factors: list[float]) -> Problem:
    """The problem with intervals of a factor around each op's curve."""
    factor = np.array(factors)[:, None]
    table = problem.curves
    return Problem(
        problem.graph, replace(table, low=table.seconds / factor, high=table.seconds * factor), problem.machine
    )


def test_resampled_curves_scatter_as_the_intervals_say_and_are_the_same_for_a_seed() -> None:
    problem = uncertain(problem_of([{1: 1.0, 2: 0.6}] * 3, cores=2, kinds="xyy"), [1.0, 1.5, 1.5])
    assert log_deviation(problem.curves)[1, 0] == pytest.approx(math.log(1.5) / 1.6449)
    worlds = list(resampled(problem, samples=4000))
    seconds = np.array([world.curves.seconds for world in worlds])
    assert np.all(seconds[:, 0] == problem.curves.seconds[0])
    assert np.array_equal(seconds[:, 1], seconds[:, 2]), "ops of one key err alike"
    within = (seconds[:, 1, 0] > 1 / 1.5) & (seconds[:, 1, 0] < 1.5)
    assert 0.88 < within.mean() < 0.92
    assert np.array_equal(seconds[:3], [world.curves.seconds for world in resampled(problem, samples=3)])


def test_ops_of_one_key_with_other_counts_err_by_themselves() -> None:
    problem = uncertain(problem_of([{1: 1.0}] * 3, cores=2), [1.5] * 3)
    ops = tuple(Op("gemm", cost=(flops, 1e6)) for flops in (1e6, 1e9, 1e9))
    graph = replace(problem.graph, ops=ops)
    (world,) = resampled(Problem(graph, problem.curves, problem.machine), samples=1)
    first, second, third = world.curves.seconds[:, 0]
    assert first != second == third


def test_a_plan_is_judged_by_its_bad_worlds() -> None:
    """At two threads the op is forecast 5 % faster and may be four times slower; at one it is known."""
    problem = problem_of([{1: 1.0, 2: 0.95}], cores=2)
    table, factor = problem.curves, np.array([1.0, 4.0])
    curves = replace(table, low=table.seconds / factor, high=table.seconds * factor)
    doubtful = Problem(problem.graph, curves, problem.machine)
    wide, narrow = (plan(doubtful, policy="uniform", inter=1, intra=threads).ops for threads in (2, 1))
    of_wide, of_narrow = percentiles_s([wide, narrow], resampled(doubtful))
    assert of_narrow == pytest.approx(1.0)
    assert of_wide > 2.0
    assert percentiles_s([narrow], resampled(doubtful)) == [of_narrow], "whatever it is held against"
