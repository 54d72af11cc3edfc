"""A gain lies within its interval, and the interval holds the true value as often as it says."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import strategies as st

from threadcast.core.errors import InvalidInput
from threadcast.core.gains import Gain, gain_of, median_interval

TIMES = st.floats(1e-6, 1e3)


def test_a_gain_is_that_of_neighbouring_times_not_of_medians_of_a_machine_that_changes_its_speed():
    # a machine that is slow while most steps of one way run: medians say 4, neighbouring steps 1
    before, after = [4.0, 4.0, 4.0, 1.0, 1.0, 4.0], [4.0, 1.0, 4.0, 1.0, 1.0, 1.0]
    assert statistics.median(before) / statistics.median(after) == 4.0
    assert gain_of(before, after) == Gain(1.0, 1.0, 4.0, 6)


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (Gain(1.25, 1.21, 1.3, 9), "1.25 times as fast as it (1.21 to 1.30)"),
        (Gain(0.97, 0.94, 0.99, 9), "3% slower than it (0.94 to 0.99)"),
        (Gain(1.01, 0.98, 1.03, 15), "not shown to be faster or slower, 1.01 times as fast as it (0.98 to 1.03)"),
        (Gain(0.2, 0.2, 0.2, 1), "5.0 times as slow as it (0.20 to 0.20 in 1 pair)"),
        (Gain(2, 1.5, 2.5, 3), "2.00 times as fast as it (1.50 to 2.50 in 3 pairs)"),
    ],
)
def test_a_gain_is_told_with_its_interval(gain, said):
    assert gain.against("it") == said


@pytest.mark.parametrize(
    ("before", "after"),
    [([1.0] * 3, [1.0] * 4), ([1.0] * 2, [1.0] * 2), ([1, 1, math.inf], [1] * 3), ([1] * 3, [0] * 3)],
)
def test_times_that_make_no_gain_are_refused(before, after):
    with pytest.raises(InvalidInput):
        gain_of(before, after)


@pytest.mark.parametrize(
    ("count", "low", "high"), [(6, 0, 5), (8, 0, 7), (9, 1, 7), (10, 1, 8), (20, 5, 14), (25, 7, 17)]
)
def test_interval_ranks_are_those_of_the_binomial_tables(count, low, high):
    # Conover, Practical Nonparametric Statistics, table of order statistics for the median at 95 %.
    assert median_interval([float(i) for i in range(count)]) == (low, high)


def test_the_interval_holds_the_true_median_as_often_as_promised():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        low, high = median_interval(sorted(rng.lognormal(0, 1, size=15))) or (0.0, 0.0)
        hits += low <= 1.0 <= high  # the median of this distribution is 1
    assert hits / 2000 >= 0.95 - 0.01  # exact coverage at 15 samples is 0.965
