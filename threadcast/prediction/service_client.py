"""Asks a service with several attempts, a circuit breaker, and one deadline over all attempts."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TypeVar

from threadcast.core.errors import DeadlineExceeded, NotAsked, ServiceError, ServiceRefused
from threadcast.prediction.bounded_request import BoundedClient, Request
from threadcast.prediction.http_answer import Answer
from threadcast.prediction.retries import Breaker, wait_s

T = TypeVar("T")

ITS_OWN_FAULT = frozenset({400, 404, 405, 409, 413, 415, 422})
"""HTTP statuses that mean that the request is wrong and the service itself works."""


class ServiceClient:
    """Asks one service, at most ATTEMPTS times a call, and not at all while the breaker is open. Safe to use from
    threads."""

    def __init__(
        self,
        http: BoundedClient,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Random | None = None,
    ) -> None:
        self._http, self._clock, self._sleep = http, clock, sleep
        self._random = random or Random()
        self._breaker = Breaker(clock=clock, random=self._random)

    def ask(self, request: Request, read: Callable[[Answer], T], *, until_s: float) -> T:
        """Return `read(answer)` before `until_s`, in seconds of the clock; only a `safe` request is repeated.

        Raises the error of the last attempt, ServiceError or a subclass; NotAsked while the breaker is open.
        """
        self._breaker.enter()
        attempt = 1
        while True:
            try:
                answer = self._attempt(request, read, until_s)
            except ServiceError as error:
                pause_s = wait_s(attempt, error, self._random) if request.safe else None
                if pause_s is None or self._clock() + pause_s >= until_s:
                    raise
                self._sleep(pause_s)
                try:
                    self._breaker.enter()
                except NotAsked:
                    raise error from None
                attempt += 1
            else:
                self._breaker.succeeded()
                return answer

    def close(self) -> None:
        """Abort all current requests, and accept no more."""
        self._http.close()

    def _attempt(self, request: Request, read: Callable[[Answer], T], until_s: float) -> T:
        remaining_s = until_s - self._clock()
        if remaining_s <= 0:
            raise DeadlineExceeded(f"no time is left to ask {self._http.url}")
        try:
            return self._http.post(request, read, deadline_s=remaining_s)
        except ServiceRefused as error:
            if error.status in ITS_OWN_FAULT:
                self._breaker.succeeded()
            else:
                self._breaker.failed(retry_after_s=error.retry_after_s)
            raise
        except NotAsked:
            raise
        except ServiceError:
            self._breaker.failed()
            raise
