"""Which failed requests are worth repeating and when, and how long a service that keeps failing is left alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

from threadcast.core.errors import DeadlineExceeded, NotAsked, ServiceError, ServiceRefused, ServiceUnavailable
from threadcast.core.fork_lock import ForkLock

ATTEMPTS = 3
"""Most attempts in one call."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0
"""Most seconds of the random wait before the second attempt, doubled for each further one, and the limit of this
doubling. A service that restarts a worker is back in less, and callers wait about a second in all."""

LONGEST_RETRY_AFTER_S = 60.0
"""Most seconds of a Retry-After that are respected: a service that asks for a day is asked again after a minute."""

PASSING = frozenset({429, 502, 503, 504})
"""HTTP statuses after which another attempt can succeed."""

LIMIT = 3
"""Failures in a row after which a service is left alone."""

FIRST_OPEN_S, LONGEST_OPEN_S = 1.0, 60.0
"""Most seconds for which it is left alone the first time, doubled each further time, and the limit of this doubling.
The actual time is random, from half of that to all of it."""


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


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds that a Retry-After header (a number or a date) asks to wait, at most LONGEST_RETRY_AFTER_S;
    None if invalid."""
    try:
        return None if header is None else min(Retry().parse_retry_after(header), LONGEST_RETRY_AFTER_S)
    except (InvalidHeader, ValueError, OverflowError):
        return None


class Breaker:
    """A circuit breaker in front of one service: call `enter` before each request, `succeeded` or `failed` after it.

    It opens after `LIMIT` failures in a row, each further one for longer, and where the service has said when to come
    back. Safe to use from threads.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, random: Random | None = None) -> None:
        self._clock, self._random = clock, random or Random()
        self._lock, self._failures, self._open_until_s = ForkLock(), 0, 0.0

    def enter(self) -> None:
        """Return if the service may be asked; else raise NotAsked."""
        left_s, failures = self._open_until_s - self._clock(), self._failures
        if left_s > 0:
            raise NotAsked(
                f"the service is not asked for {left_s:.1f} s more, after {failures} failure{'s' * (failures > 1)} in "
                "a row"
            )

    def succeeded(self) -> None:
        """Record a request that succeeded."""
        with self._lock:
            self._failures, self._open_until_s = 0, 0.0

    def failed(self, *, retry_after_s: float | None = None) -> None:
        """Record a failed request; `retry_after_s`: seconds that the service asked to wait. While the breaker is open,
        failures that began before do not keep it open longer."""
        with self._lock:
            now_s = self._clock()
            if now_s >= self._open_until_s:
                self._failures += 1
                if (beyond := self._failures - LIMIT) >= 0:
                    most_s = min(FIRST_OPEN_S * 2.0 ** min(beyond, 16), LONGEST_OPEN_S)
                    self._open_until_s = now_s + self._random.uniform(most_s / 2, most_s)
            self._open_until_s = max(self._open_until_s, now_s + (retry_after_s or 0.0))
