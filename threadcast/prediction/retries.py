"""Which failed requests are worth repeating, and how long to wait before that."""

from __future__ import annotations

import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random

from threadcast.core.errors import DeadlineExceeded, NotAsked, ServiceError, ServiceRefused, ServiceUnavailable

ATTEMPTS = 3
"""Most attempts of one call."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0
"""Bounds of the random wait before the second attempt, doubled for each further one, and its limit. A convention: a
service that restarts a worker is back in less, and callers wait about a second in all."""

LONGEST_RETRY_AFTER_S = 60.0
"""Longest Retry-After that is respected: a service that asks for a day is asked again after a minute."""

PASSING = frozenset({429, 502, 503, 504})
"""HTTP statuses after which another attempt can succeed."""


def wait_s(failed: int, error: ServiceError, random: Random) -> float | None:
    """Seconds to wait after the `failed`-th attempt (from 1) ended in `error`; None: another one would not help.

    Drawn evenly from 0 to a limit that doubles ("full jitter", Brooker 2015), so that clients of one service that
    failed them all do not come back all at once; on top of its Retry-After where it gave one.
    """
    passing = isinstance(error, ServiceUnavailable) or (isinstance(error, ServiceRefused) and error.status in PASSING)
    if failed >= ATTEMPTS or not passing or isinstance(error, NotAsked | DeadlineExceeded):
        return None
    asked_s = error.retry_after_s if isinstance(error, ServiceRefused) else None
    return (asked_s or 0.0) + random.uniform(0.0, min(FIRST_WAIT_S * 2 ** (failed - 1), LONGEST_WAIT_S))


def retry_after_s(header: str | None, *, now_s: float | None = None) -> float | None:
    """Seconds that a Retry-After asks to wait, as a number or a date, at most LONGEST_RETRY_AFTER_S; None if neither.

    `now_s` is the time since 1970 that a date is compared with (None: this machine's). Source: RFC 9110, 10.2.3.
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
