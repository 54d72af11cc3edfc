"""Intervals hold as often as they say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.models.intervals import LONE_SAMPLE_SPREAD, TAIL, bounds_of_median, residual_bounds

ROUNDS = 4000
SLACK = 4 * math.sqrt(0.9 * 0.1 / ROUNDS)  # four standard errors of a share of 90 %


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 9, 20, 99, 101, 400])
def test_the_interval_of_a_median_holds_in_nine_of_ten_runs(count):
    rng = np.random.default_rng(count)
    runs = np.exp(0.1 * rng.standard_normal((ROUNDS, count)))  # median 1
    held = np.mean([low <= 1.0 <= high for low, high in map(bounds_of_median, runs.tolist())])
    assert held >= 0.9 - SLACK


def test_order_statistics_do_not_mind_outliers():
    assert bounds_of_median([1.0, 1.0, 1.0, 1.01, 1.02, 1.02, 1.03, 50.0, 90.0]) == (1.0, 50.0)
    assert bounds_of_median([1.0] * 20 + [90.0]) == (1.0, 1.0)


def test_a_lone_sample_gets_the_assumed_spread():
    assert bounds_of_median([2.0]) == (2.0 * (1 - LONE_SAMPLE_SPREAD), 2.0 * (1 + LONE_SAMPLE_SPREAD))


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60))
def test_the_interval_is_positive_ordered_and_holds_the_median(samples):
    low, high = bounds_of_median(samples)
    assert 0 < low <= high
    assert low <= np.median(samples) * (1 + 1e-9)
    assert high >= np.median(samples) * (1 - 1e-9)


@pytest.mark.parametrize("count", [39, 100])
def test_residual_bounds_hold_for_a_further_residual(count):
    rng = np.random.default_rng(count)
    held = 0
    for _ in range(ROUNDS):
        *seen, new = rng.standard_normal(count + 1)
        low, high = residual_bounds(np.array(seen))
        held += low <= new <= high
    assert abs(held / ROUNDS - (1 - 2 * TAIL)) < SLACK + 2 / count


def test_residual_bounds_enclose_the_forecast_even_if_it_was_always_off_to_one_side():
    assert residual_bounds(np.array([0.2, 0.3, 0.4])) == (0.0, 0.4)
    assert residual_bounds(np.array([-0.2, -0.3])) == (-0.3, 0.0)
