"""Scores, on numbers that can be checked by hand."""

import numpy as np
import pytest

from threadcast.models.metrics import accuracy, coverage, r2

ACTUAL = np.array([1.0, 2.0, 4.0])
NONE = np.empty(0)


def test_accuracy_is_one_less_the_mean_relative_error():
    assert accuracy(ACTUAL, np.array([1.1, 2.0, 3.0])) == pytest.approx(1 - (0.1 + 0.0 + 0.25) / 3)
    assert accuracy(ACTUAL, ACTUAL) == 1.0


def test_accuracy_falls_below_zero_where_forecasts_are_off_by_more_than_the_truth():
    assert accuracy(ACTUAL, 3 * ACTUAL) == pytest.approx(-1.0)


def test_r2_is_one_for_the_truth_zero_for_the_mean_and_none_without_spread():
    assert r2(ACTUAL, ACTUAL) == 1.0
    assert r2(ACTUAL, np.full(3, ACTUAL.mean())) == pytest.approx(0.0)
    assert r2(np.ones(3), ACTUAL) is None


def test_coverage_is_the_share_within_the_interval():
    assert coverage(ACTUAL, ACTUAL - 0.1, np.array([1.0, 1.5, 9.0])) == pytest.approx(2 / 3)


def test_scores_of_nothing_are_none():
    assert accuracy(NONE, NONE) is r2(NONE, NONE) is coverage(NONE, NONE, NONE) is None
