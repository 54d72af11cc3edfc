"""Limits on how many requests one API key sends over time; without keys, one address."""

from __future__ import annotations

import logging
import sqlite3

from apiflask import APIFlask
from flask import Response, g, request

from threadcast.service.answers import RATE_LIMIT, RATE_LIMIT_POLICY
from threadcast.service.in_flight import UNBOUNDED
from threadcast.service.keys import Key
from threadcast.service.metrics import Metrics
from threadcast.service.problems import Problem
from threadcast.service.rates import Rate, Taken, TokenBuckets
from threadcast.service.settings import ServiceSettings

_log = logging.getLogger(__name__)


def install(app: APIFlask, settings: ServiceSettings, metrics: Metrics) -> None:
    """Make `app` refuse what is beyond the rates; install it behind `auth`, which reads keys.

    A key's own rate takes the place of the setting. What `in_flight.UNBOUNDED` names is not counted.
    """
    usual = Rate.parse(settings.rate_limit)
    if usual is None and settings.keys is None:
        return  # no key can bring a rate of its own
    buckets = TokenBuckets(settings.rate_buckets)

    def take() -> None:
        if request.endpoint in UNBOUNDED:
            return
        key: Key | None = g.get("key")
        rate = usual if key is None or key.rate_limit is None else Rate.parse(key.rate_limit)
        if rate is None:
            return
        caller = f"address {request.remote_addr}" if key is None else f"key {key.name}"
        try:
            g.rate = taken = buckets.take(caller, rate)
        except sqlite3.Error as error:  # a full folder for temporary files, for example
            _log.error("requests of limited callers are refused, as they cannot be counted: %s", error)
            raise Problem(
                503,
                "requests cannot be counted at the moment, so this one is not let in",
                headers={"Retry-After": "10"},
            ) from error
        if not taken.allowed:
            metrics.limited.labels("" if key is None else key.name).inc()
            raise _too_many(taken)

    def tell(response: Response) -> Response:
        taken: Taken | None = g.get("rate")
        if taken is not None:
            rate = taken.rate
            response.headers[RATE_LIMIT_POLICY] = f'"requests";q={rate.requests};w={rate.period_s}'
            response.headers[RATE_LIMIT] = f'"requests";r={taken.remaining};t={taken.full_in_s}'
        return response

    app.before_request(take)
    app.after_request(tell)


def _too_many(taken: Taken) -> Problem:
    return Problem(
        429, f"{taken.rate.requests} requests in {taken.rate.period_s} s are the rate of this caller; wait "
        f"{taken.retry_in_s} s", pointer="/Authorization", where="header",
        headers={"Retry-After": str(taken.retry_in_s)},
    )  # fmt: skip
