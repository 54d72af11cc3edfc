"""Finding when the times of an op changed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from threadcast.store.changes import Point, courses

QUIET = [0.0, 0.02, -0.01, 0.01, -0.02, 0.0, 0.015, -0.005]


def series(logs, *, samples=1, number=0, start=0.0):
    return [Point(start + i, number, float(log), samples) for i, log in enumerate(logs)]


def course(logs, **options):
    return courses(series(logs, **options))[0]


@pytest.mark.parametrize("factor", [3.0, 1.8, 1 / 1.8, 1 / 3])
def test_three_samples_are_a_change_up_or_down(factor: float) -> None:
    new = math.log(factor)
    found = course([*QUIET, new, new, new])
    assert found.holding == [8, 9, 10]
    assert found.log_s == pytest.approx(new)
    assert [level.log_s for level in found.ended] == [pytest.approx(0.0, abs=0.02)]
    assert found.shift_since(7.0) == pytest.approx(new, abs=0.02)


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_slow_samples_are_no_change_but_suspected(count: int) -> None:
    found = course([*QUIET, *[1.1] * count])
    assert not found.ended
    assert len(found.holding) == len(QUIET) + count
    assert found.log_s == pytest.approx(0.0, abs=0.02)
    assert found.suspected == pytest.approx(1.1)
    after = course([*QUIET, *[1.1] * count, *QUIET])
    assert (after.ended, after.suspected) == ([], None)


def test_one_measurement_of_three_samples_is_a_change_and_one_of_fewer_is_not() -> None:
    assert course([*QUIET, 1.1], samples=3).holding == [8]
    points = [*series(QUIET, samples=9), Point(9.0, 0, 1.1, 2)]
    assert not courses(points)[0].ended


def test_a_small_change_is_found_after_more_samples() -> None:
    few, many = course([*QUIET, *[0.35] * 3]), course([*QUIET, *[0.35] * 10])
    assert not few.ended
    assert many.log_s == pytest.approx(0.35, abs=0.01)


def test_three_samples_at_three_thread_counts_are_a_change_of_all_of_them() -> None:
    old = [Point(float(i), number, 0.0, 5) for number in range(4) for i in range(2)]
    new = [Point(10.0 + number, number, 1.1, 1) for number in range(3)]
    found = courses(sorted([*old, *new]))
    assert [bool(found[number].ended) for number in range(4)] == [True, True, True, False]


def test_once_a_series_has_changed_one_sample_of_another_follows_it_and_an_unchanged_one_does_not() -> None:
    old = [Point(float(number), number, 0.0, 5) for number in range(3)]
    changed = [Point(10.0, 0, 1.1, 3), Point(11.0, 1, 1.0, 1), Point(12.0, 2, 0.01, 1)]
    found = courses([*old, *changed])
    assert [bool(found[number].ended) for number in range(3)] == [True, True, False]
    before = [Point(10.0, 1, 1.0, 1), Point(11.0, 0, 1.1, 3)]
    assert all(courses([*old, *before])[number].ended for number in (0, 1))


def test_a_shift_counts_from_the_time_at_which_the_level_ended() -> None:
    found = courses([Point(0.0, 0, 0.0, 5), Point(1e4, 0, 1.0, 5), Point(2e4, 0, 3.0, 5)])[0]
    assert found.shift_since(0.0) == pytest.approx(3.0)
    assert found.shift_since(9.5e3) == pytest.approx(2.0)  # in the session that found the first change
    assert found.shift_since(1.5e4) == pytest.approx(2.0)
    assert found.shift_since(2e4) is None
    assert courses([Point(50.0, 0, 0.0, 5)])[0].shift_since(10.0) is None  # nothing to compare it with


def test_samples_off_in_turn_to_both_sides_are_no_change() -> None:
    found = course([*QUIET, *[0.7, -0.7] * 6])
    assert len(found.ended) == 0
    assert len(found.holding) == len(QUIET) + 12


def test_normal_scatter_hardly_ever_looks_like_a_change() -> None:
    random = np.random.default_rng(0)
    alarms = sum(len(course(0.16 * random.standard_normal(300)).ended) for _ in range(60))
    assert alarms <= 3  # of 18,000 samples
