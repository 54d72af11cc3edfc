"""Intervals hold as often as they say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core.errors import ArtefactError, FormatError
from threadcast.models.intervals import LONE_SAMPLE_SPREAD, TAIL, bounds_of_median, residual_bounds
from threadcast.models.novelty import MOST_SLOPE, NoveltyWidth

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


def test_intervals_are_wider_the_less_an_op_is_like_the_known_ones():
    random = np.random.default_rng(0)
    novelty = random.uniform(-2, 2, 400)
    scores = random.standard_normal((400, 12)) * np.exp(0.5 * novelty)[:, None]
    scores[::7, 3] = np.nan
    scores[0] = np.nan
    width = NoveltyWidth.of(novelty, 2).learned(1, novelty, scores).same_as_before(2)
    assert width.slopes[0] == 0
    assert width.slopes[1] == width.slopes[2] == pytest.approx(0.5, abs=0.05)
    relative = scores / width.factors(novelty, 1)[:, None]
    far, near = novelty > 1, novelty < -1
    assert np.nanstd(relative[far]) == pytest.approx(np.nanstd(relative[near]), rel=0.15)
    assert width.factors(np.array([np.nan]), 1).tolist() == [1.0]
    assert width.factors(np.array([99.0]), 1)[0] < np.exp(0.55 * (2 - width.centre + np.log(2)))
    assert NoveltyWidth.from_json(width.to_json(), 2).to_json() == width.to_json()
    assert width.first(0).slopes.tolist() == [0.0]
    alike = NoveltyWidth.of(novelty, 0).learned(0, novelty, random.standard_normal((400, 12)))
    assert alike.slopes[0] < 0.05
    few = NoveltyWidth.of(novelty[:10], 0).learned(0, novelty[:10], scores[:10])
    assert few.slopes.tolist() == [0.0]
    for wrong in ({"slopes": [0.0]}, {"slopes": [-1.0, 0.0, 0.0]}, {"least": 9.0}, {"centre": "far"}):
        with pytest.raises((ArtefactError, FormatError)):
            NoveltyWidth.from_json({**width.to_json(), **wrong}, 2)


def test_novelties_that_are_equal_but_for_rounding_tell_nothing():
    random = np.random.default_rng(1)
    novelty = np.log(2.0) + 1e-15 * random.standard_normal(40)
    width = NoveltyWidth.of(novelty, 0).learned(
        0, novelty, random.standard_normal((40, 5)) * random.uniform(1, 9, (40, 1))
    )
    assert width.slopes.tolist() == [0.0]
    spread = random.uniform(0, 1, 400)
    steep = NoveltyWidth.of(spread, 0).learned(
        0, spread, random.standard_normal((400, 5)) * np.exp(9 * spread)[:, None]
    )
    assert steep.slopes.tolist() == [MOST_SLOPE]
