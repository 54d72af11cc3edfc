"""Bounds on the requests that are worked at at the same time: over all of them, and those of each API key."""

from __future__ import annotations

import threading
from collections import Counter

from apiflask import APIFlask
from flask import g, request

from threadcast.service.auth import OPEN
from threadcast.service.keys import Key
from threadcast.service.problems import Problem

UNBOUNDED = OPEN | {"operations.metrics"}
"""Endpoints that are answered however much else is worked at: what watches the service must see it then, too."""

_TAKEN = "threadcast.place"
"""Member of a request's environment: a tuple of the name of the key whose place it has."""


class Places:
    """The places of requests: `most` in all, `most_per_key` for one key. Safe to use from threads."""

    def __init__(self, most: int, most_per_key: int) -> None:
        self._most, self._most_per_key = most, most_per_key
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._all = 0

    def take(self, key: str | None) -> None:
        """Take a place for a request with the key of this name, None where keys are not asked for.

        Problem 429 where there is none.
        """
        with self._lock:
            if self._all >= self._most:
                raise _no_place(f"{self._most} requests are being worked at, which is max_in_flight")
            if key is not None:
                if self._taken[key] >= self._most_per_key:
                    what = f"{self._most_per_key} requests with this key"
                    raise _no_place(f"{what} are being worked at, which is max_in_flight_per_key")
                self._taken[key] += 1
            self._all += 1

    def give_back(self, key: str | None) -> None:
        """Give back what `take` took."""
        with self._lock:
            self._all -= 1
            if key is not None:
                self._taken[key] -= 1
                if not self._taken[key]:
                    del self._taken[key]


def _no_place(why: str) -> Problem:
    return Problem(429, f"{why}; try again shortly", headers={"Retry-After": "1"})


def install(app: APIFlask, places: Places) -> None:
    """Make `app` take a place for each request but those of `UNBOUNDED`; install it behind `auth`, which reads keys."""

    def begin() -> None:
        if request.endpoint in UNBOUNDED:
            return
        key: Key | None = g.get("key")
        name = None if key is None else key.name
        places.take(name)
        request.environ[_TAKEN] = (name,)

    def end(error: BaseException | None) -> None:
        place = request.environ.pop(_TAKEN, None)
        if place is not None:
            places.give_back(*place)

    app.before_request(begin)
    app.teardown_request(end)
