"""Decides whether a failed request is worth repeating, and how long to wait before that."""

from __future__ import annotations

import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random

from threadcast.core.errors import DeadlineExceeded, NotAsked, ServiceError, ServiceRefused, ServiceUnavailable

ATTEMPTS = 3
"""Most attempts in one call."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0
"""Most seconds of the random wait before the second attempt, doubled for each further one, and the limit of this
doubling. A service that restarts a worker is back in less, and callers wait about a second in all."""

LONGEST_RETRY_AFTER_S = 60.0
"""Most seconds of a Retry-After that are respected: a service that asks for a day is asked again after a minute."""

PASSING = frozenset({429, 502, 503, 504})
"""HTTP statuses after which another attempt can succeed."""


def wait_s(failed: int, error: ServiceError, random: Random) -> float | None:
    """Return the seconds to wait after attempt number `failed` (from 1) ended in `error`; None: do not try again.

    The wait is uniformly random between 0 and a limit that doubles ("full jitter", Brooker 2015), so that the clients
    of a service do not all return at once after it failed. A Retry-After of the service is added.
    """
    passing = isinstance(error, ServiceUnavailable) or (isinstance(error, ServiceRefused) and error.status in PASSING)
    if failed >= ATTEMPTS or not passing or isinstance(error, NotAsked | DeadlineExceeded):
        return None
    asked_s = error.retry_after_s if isinstance(error, ServiceRefused) else None
    return (asked_s or 0.0) + random.uniform(0.0, min(FIRST_WAIT_S * 2 ** (failed - 1), LONGEST_WAIT_S))


def retry_after_s(header: str | None, *, now_s: float | None = None) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, at most LONGEST_RETRY_AFTER_S; None if invalid.

    The header holds a number or a date. `now_s` is the time in seconds since 1970 to compare a date with (None: this
    machine's clock). Source: RFC 9110, 10.2.3.
    """
    if header is None:
        return None
    text = header.strip()[:64]
    if text.isascii() and text.isdigit():
        seconds = float(text)
    else:
        try:
            date = parsedate_to_datetime(text)
            until_s = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
        seconds = until_s - (time.time() if now_s is None else now_s)
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_S)
