"""The guard keeps what is faster, step by neighbouring step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core.errors import InvalidInput
from threadcast.scheduler.runtime.guard import judge


def test_a_faster_plan_is_kept_and_an_equal_one_is_not() -> None:
    assert judge([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]).kept == "plan"
    assert judge([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]).gain == 2.0
    assert judge([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]).kept == "default"


def test_a_machine_that_slows_down_for_both_changes_nothing() -> None:
    default, planned = [2.0, 2.0, 2.0, 20.0, 20.0], [1.5, 1.5, 1.5, 15.0, 15.0]
    verdict = judge(default, planned)
    assert (verdict.kept, verdict.low, verdict.high) == ("plan", pytest.approx(4 / 3), pytest.approx(4 / 3))


def test_one_disturbed_step_does_not_turn_the_verdict() -> None:
    assert judge([2.0, 2.0, 0.1, 2.0, 2.0], [1.0] * 5).kept == "plan"


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3)), min_size=3))
def test_quartiles_enclose_the_gain_and_the_verdict_follows_it(pairs: list[tuple[float, float]]) -> None:
    verdict = judge([d for d, _ in pairs], [p for _, p in pairs])
    assert verdict.low <= verdict.gain <= verdict.high
    assert (verdict.kept == "plan") == (verdict.gain > 1.0)


@pytest.mark.parametrize(
    ("default", "planned"),
    [
        ([1.0] * 3, [1.0] * 2),
        ([1.0] * 2, [1.0] * 2),
        ([1.0, 1.0, 0.0], [1.0] * 3),
        ([1.0] * 3, [1.0, 1.0, float("nan")]),
    ],
)
def test_too_few_or_impossible_times_are_refused(default: list[float], planned: list[float]) -> None:
    with pytest.raises(InvalidInput):
        judge(default, planned)
