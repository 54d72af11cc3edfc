"""A service that keeps failing is left alone, tried by one, and asked again once it answers."""

from __future__ import annotations

from random import Random

import pytest

from tests.clock import Clock
from threadcast.core.errors import NotAsked
from threadcast.prediction.breaker import FIRST_OPEN_S, LIMIT, LONGEST_OPEN_S, Breaker


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock=clock, random=Random(0))


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.enter(1e9)
        breaker.failed()


def test_it_is_closed_until_so_many_failures_in_a_row(breaker: Breaker) -> None:
    fail(breaker, LIMIT - 1)
    assert breaker.phase == "closed"
    fail(breaker, 1)
    assert breaker.phase == "open"


def test_a_success_between_them_starts_the_count_anew(breaker: Breaker) -> None:
    fail(breaker, LIMIT - 1)
    breaker.succeeded()
    fail(breaker, LIMIT - 1)
    assert breaker.phase == "closed"


def test_while_it_is_open_nobody_may_ask_and_the_error_says_how_long(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, LIMIT)
    with pytest.raises(NotAsked, match=r"not asked for \d\.\d s more, after 3 failures in a row"):
        breaker.enter(1e9)
    clock.now_s += FIRST_OPEN_S
    breaker.enter(1e9)


def test_half_open_one_may_try_and_the_others_may_not(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, LIMIT)
    clock.now_s += FIRST_OPEN_S
    assert breaker.phase == "half-open"
    breaker.enter(clock.now_s + 5)
    with pytest.raises(NotAsked, match="somebody else is trying"):
        breaker.enter(clock.now_s + 5)


def test_a_probe_that_succeeds_closes_it(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, LIMIT)
    clock.now_s += FIRST_OPEN_S
    breaker.enter(1e9)
    breaker.succeeded()
    assert breaker.phase == "closed"
    fail(breaker, LIMIT - 1)
    assert breaker.phase == "closed"


def test_each_probe_that_fails_opens_it_for_longer_up_to_a_limit(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, LIMIT)
    for opened in range(1, 12):
        clock.now_s += LONGEST_OPEN_S
        fail(breaker, 1)
        most_s = min(FIRST_OPEN_S * 2**opened, LONGEST_OPEN_S)
        clock.now_s += most_s / 2 - 0.001
        assert breaker.phase == "open"
        clock.now_s += most_s / 2 + 0.002
        assert breaker.phase == "half-open"


def test_a_probe_that_never_reports_is_forgotten_at_its_deadline(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, LIMIT)
    clock.now_s += FIRST_OPEN_S
    breaker.enter(clock.now_s + 5)
    clock.now_s += 5
    breaker.enter(clock.now_s + 5)


def test_failures_that_began_before_it_opened_do_not_make_it_longer(breaker: Breaker, clock: Clock) -> None:
    for _ in range(LIMIT + 20):
        breaker.failed()
    clock.now_s += FIRST_OPEN_S
    assert breaker.phase == "half-open"


def test_a_service_that_says_when_to_come_back_is_not_asked_before(breaker: Breaker, clock: Clock) -> None:
    breaker.failed(retry_after_s=7.0)
    with pytest.raises(NotAsked, match=r"not asked for 7\.0 s more, after 1 failure in a row"):
        breaker.enter(1e9)
    clock.now_s += 7.0
    assert breaker.phase == "closed"


def test_it_opens_for_a_random_time_so_that_a_fleet_does_not_come_back_at_once(clock: Clock) -> None:
    waits = set()
    for seed in range(20):
        breaker = Breaker(clock=clock, random=Random(seed))
        fail(breaker, LIMIT)
        with pytest.raises(NotAsked) as refused:
            breaker.enter(1e9)
        waits.add(str(refused.value))
    assert len(waits) > 3
