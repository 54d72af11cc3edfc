"""What learning costs is counted against the best way known, and bounded."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from threadcast.runtime.tuning.warm_up import LEAST_START_S, START_S, Allowance, WarmUp


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


@pytest.mark.parametrize(
    ("seconds", "known"),
    [
        ([], None),
        ([0.01, 0.01], None),
        ([0.01, 0.01, 0.01], 0.01),
        ([0.02, 0.012, 0.01], None),
        ([0.02, 0.012, 0.01, 0.011, 0.0105], 0.0105),
        ([0.02, 0.012, 0.01, 0.009, 0.0088, 0.0087], 0.0088),
        ([0.1 - 0.006 * i for i in range(9)], None),
        ([0.1 - 0.006 * i for i in range(10)], pytest.approx(0.058)),
        ([2.0], None),
        ([2.0, 1.0], 1.0),
    ],
)
def test_how_long_eager_takes_is_known_once_it_becomes_no_faster(seconds: list[float], known: float | None) -> None:
    warm_up = WarmUp()
    for step_s in (9.0, *seconds):
        warm_up.ran(step_s, lost_s=0.0)
        warm_up.ran_eager(step_s)
    assert warm_up.eager_s == known
    assert WarmUp(eager_s=[9.0, *seconds]).eager_s == known


def test_learning_may_lose_a_share_of_the_time_beside_the_first_capture() -> None:
    allowance = Allowance(0.1)
    for _ in range(3):
        allowance.ran_eager(1.0)
    warm_up = WarmUp(allowance, eager_s=[1.0, 1.0, 1.0])
    warm_up.ran(5.0, lost_s=0.1)
    assert warm_up.allows(START_S)
    assert not warm_up.allows(1.01 * START_S)
    warm_up.ran(1.0, lost_s=START_S)
    assert not warm_up.allows(0.1)
    for _ in range(20):
        warm_up.ran(1.0, lost_s=0.0)
    assert allowance.seconds == 29.0
    assert warm_up.allows(2.9 - START_S)
    assert not warm_up.allows(3.0 - START_S)


def test_all_kinds_of_calls_have_one_allowance() -> None:
    allowance = Allowance(0.1)
    one, other = WarmUp(allowance), WarmUp(allowance)
    one.ran(1.0, lost_s=0.1)
    assert other.allows(START_S), "the first capture is free"
    other.charge(START_S)
    assert not one.allows(0.1)
    assert (allowance.lost_s, allowance.seconds) == (0.1 + START_S, 1.0)


@pytest.mark.parametrize(("captured_s", "start_s"), [(0.7, 1.0), (1.0, 0.7), (9.0, LEAST_START_S)])
def test_a_long_capture_leaves_less_for_learning(captured_s: float, start_s: float) -> None:
    warm_up = WarmUp(Allowance(0.0))
    warm_up.ran(captured_s, lost_s=captured_s)
    assert warm_up.allows(0.99 * start_s)
    assert not warm_up.allows(1.01 * start_s)


def test_what_seems_to_be_gained_is_no_credit_for_later() -> None:
    warm_up = WarmUp(Allowance(0.1))
    warm_up.ran(1.0, lost_s=0.0)
    warm_up.ran(1.0, lost_s=-1_000.0)
    assert not warm_up.allows(1.01 * START_S)


def test_a_share_of_one_allows_anything_and_of_zero_nothing_after_the_start() -> None:
    whole, nothing = WarmUp(Allowance(1.0)), WarmUp(Allowance(0.0))
    for warm_up in (whole, nothing):
        warm_up.ran(1.0, lost_s=0.0)
        warm_up.ran(100.0, lost_s=START_S)
    assert whole.allows(1e9)
    assert not nothing.allows(1e-6)


def test_learning_may_lose_anything_until_the_last_that_asks_for_it_has_ended() -> None:
    allowance = Allowance(0.1)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(allowance.without_limit())
        second.enter_context(allowance.without_limit())
        first.close()
        assert allowance.share == 1.0
    assert allowance.share == 0.1
