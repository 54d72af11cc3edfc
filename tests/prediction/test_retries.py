"""What is worth another attempt, when, what a Retry-After means, and when a service is left alone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clock import Clock
from threadcast.core.errors import DeadlineExceeded, NotAsked, ServiceError, ServiceRefused, ServiceUnavailable
from threadcast.prediction.retries import (
    ATTEMPTS,
    FIRST_OPEN_S,
    FIRST_WAIT_S,
    LIMIT,
    LONGEST_OPEN_S,
    LONGEST_RETRY_AFTER_S,
    Breaker,
    retry_after_s,
    wait_s,
)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), ("0", 0.0), (" 3 ", 3.0), ("86400", LONGEST_RETRY_AFTER_S), ("9" * 60, 60.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0), ("Mon, 07 Nov 2994 08:49:37 GMT", LONGEST_RETRY_AFTER_S),
        ("-1", None), ("1.5", None), ("", None), ("soon", None), ("٣", None), ("9" * 9_999, None),
        ("Sun, 06 Nov 99999999 08:49:42 GMT", None), ("\x00", None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date_and_believed_up_to_a_limit(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header) == seconds


@given(st.text(max_size=80))
def test_any_other_retry_after_is_none_or_within_its_limits(header: str) -> None:
    found = retry_after_s(header)
    assert found is None or 0 <= found <= LONGEST_RETRY_AFTER_S


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ServiceUnavailable("broke off"), True), (ServiceRefused("", status=503), True),
        (ServiceRefused("", status=429), True), (ServiceRefused("", status=502), True),
        (ServiceRefused("", status=500), False), (ServiceRefused("", status=422), False),
        (ServiceRefused("", status=401), False), (ServiceError("garbage"), False), (DeadlineExceeded("late"), False),
        (NotAsked("open"), False),
    ],
)  # fmt: skip
def test_only_what_may_pass_is_tried_again(error: ServiceError, again: bool) -> None:
    assert (wait_s(1, error, Random(0)) is not None) == again


def test_there_is_a_last_attempt() -> None:
    error = ServiceUnavailable("broke off")
    assert wait_s(ATTEMPTS - 1, error, Random(0)) is not None
    assert wait_s(ATTEMPTS, error, Random(0)) is None


def test_waits_are_spread_evenly_from_none_to_a_limit_that_doubles() -> None:
    random = Random(0)
    for failed, most_s in ((1, FIRST_WAIT_S), (2, 2 * FIRST_WAIT_S)):
        waits = [wait_s(failed, ServiceUnavailable("broke off"), random) or 0.0 for _ in range(400)]
        assert min(waits) < 0.05 * most_s
        assert 0.95 * most_s < max(waits) <= most_s


def test_the_wait_is_never_less_than_was_asked_for() -> None:
    refused = ServiceRefused("", status=503, retry_after_s=2.0)
    waits = [wait_s(1, refused, Random(seed)) or 0.0 for seed in range(50)]
    assert 2.0 <= min(waits) <= max(waits) <= 2.0 + FIRST_WAIT_S


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock=clock, random=Random(0))


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.enter()
        breaker.failed()


def test_a_service_is_asked_until_so_many_failures_in_a_row_and_then_left_alone(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, LIMIT - 1)
    breaker.enter()
    breaker.succeeded()
    fail(breaker, LIMIT)
    with pytest.raises(NotAsked, match=r"not asked for \d\.\d s more, after 3 failures in a row"):
        breaker.enter()
    clock.now_s += FIRST_OPEN_S
    breaker.enter()


def test_each_try_that_fails_opens_it_for_longer_up_to_a_limit(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, LIMIT)
    for opened in range(1, 12):
        clock.now_s += LONGEST_OPEN_S
        fail(breaker, 1)
        most_s = min(FIRST_OPEN_S * 2**opened, LONGEST_OPEN_S)
        clock.now_s += most_s / 2 - 0.001
        with pytest.raises(NotAsked):
            breaker.enter()
        clock.now_s += most_s / 2 + 0.002


def test_failures_that_began_before_it_opened_do_not_make_it_longer(breaker: Breaker, clock: Clock) -> None:
    for _ in range(LIMIT + 20):
        breaker.failed()
    clock.now_s += FIRST_OPEN_S
    breaker.enter()


def test_a_service_that_says_when_to_come_back_is_not_asked_before(breaker: Breaker, clock: Clock) -> None:
    breaker.failed(retry_after_s=7.0)
    with pytest.raises(NotAsked, match=r"not asked for 7\.0 s more, after 1 failure in a row"):
        breaker.enter()
    clock.now_s += 7.0
    breaker.enter()


def test_it_opens_for_a_random_time_so_that_a_fleet_does_not_come_back_at_once(clock: Clock) -> None:
    waits = set()
    for seed in range(20):
        breaker = Breaker(clock=clock, random=Random(seed))
        fail(breaker, LIMIT)
        with pytest.raises(NotAsked) as refused:
            breaker.enter()
        waits.add(str(refused.value))
    assert len(waits) > 3
