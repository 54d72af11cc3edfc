"""What is worth another attempt, when, and what a Retry-After means."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core.errors import DeadlineExceeded, NotAsked, ServiceError, ServiceRefused, ServiceUnavailable
from threadcast.prediction.retries import ATTEMPTS, FIRST_WAIT_S, LONGEST_RETRY_AFTER_S, retry_after_s, wait_s

EPOCH_1994 = 784111777.0
"""Sun, 06 Nov 1994 08:49:37 GMT, the date that RFC 9110 writes in three ways."""


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), ("0", 0.0), ("3", 3.0), (" 3 ", 3.0), ("86400", LONGEST_RETRY_AFTER_S), ("9" * 60, 60.0),
        ("Sun, 06 Nov 1994 08:49:42 GMT", 5.0), ("Sun, 06 Nov 1994 08:49:37 -0000", 0.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0), ("Mon, 07 Nov 1994 08:49:37 GMT", LONGEST_RETRY_AFTER_S),
        ("-1", None), ("1.5", None), ("", None), ("soon", None), ("٣", None), ("Sun, 99 Nov 1994 08:49:42 GMT", None),
        ("Sun, 06 Nov 99999999 08:49:42 GMT", None), ("\x00", None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date_and_believed_up_to_a_limit(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, now_s=EPOCH_1994) == seconds


@given(st.text(max_size=80))
def test_any_other_retry_after_is_none_or_within_its_limits(header: str) -> None:
    found = retry_after_s(header, now_s=EPOCH_1994)
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
