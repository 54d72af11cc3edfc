"""Prometheus metrics of requests, predictions and models."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from apiflask import APIFlask
from flask import Response, g, request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of the histogram of seconds: from those of a cached curve to those of the plan of a large graph."""

RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.05, 1.11, 1.25, 1.5, 2.0, 4.0)
"""Bounds of the histogram of measured over predicted time: factors that are symmetric about 1."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "(no route)"


class Metrics:
    """The metrics of one app. Where there are several worker processes, all write theirs to `multiprocess_dir`."""

    def __init__(self, *, multiprocess_dir: str | None = None) -> None:
        self._multiprocess_dir = multiprocess_dir
        self._registry = CollectorRegistry()
        labels = ("route", "method", "code")
        self.requests = Counter(
            "threadcast_http_requests", "Requests answered, errors too.", labels, registry=self._registry
        )
        self.latency = Histogram(
            "threadcast_http_request_seconds", "Seconds from the request's arrival in the app to its answer.",
            ("route", "method"), buckets=BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            "threadcast_http_requests_in_flight", "Requests being worked at.", registry=self._registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.points = Counter(
            "threadcast_predicted_points", "Points of predicted curves answered.", ("model",), registry=self._registry
        )
        self.limited = Counter(
            "threadcast_rate_limited_requests", "Requests refused because their key sent more than its rate.", ("key",),
            registry=self._registry,
        )  # fmt: skip
        self.samples = Counter("threadcast_stored_samples", "Samples stored.", registry=self._registry)
        self.load_failures = Counter(
            "threadcast_model_load_failures", "Times that what an alias moved to could not be loaded.", ("alias",),
            registry=self._registry,
        )  # fmt: skip
        self.ratios = Histogram(
            "threadcast_observed_over_predicted", "Seconds measured over those predicted without samples.",
            ("model",), buckets=RATIOS, registry=self._registry,
        )  # fmt: skip
        self._models = Gauge(
            "threadcast_model_info", "1 for the version that an alias stands for, 0 for those that it did.",
            ("alias", "version"), registry=self._registry, multiprocess_mode="livemax",
        )  # fmt: skip
        self._standing: dict[str, str] = {}

    def moved(self, alias: str, version: str) -> None:
        """Record the version that an alias stands for from now on."""
        if alias in self._standing:
            self._models.labels(alias, self._standing[alias]).set(0)
        self._models.labels(alias, version).set(1)
        self._standing[alias] = version

    def count(self, route: str, method: str, status: int, took_s: float | None) -> None:
        """Count an answer, and its seconds where they are known."""
        asked = (route, method if method in _METHODS else "other")
        self.requests.labels(*asked, status).inc()
        if took_s is not None:
            self.latency.labels(*asked).observe(took_s)

    def count_points(self, model: str, points: int) -> None:
        """Count points of curves that this model version predicted."""
        self.points.labels(model).inc(points)

    def count_unmatched(self, method: str, status: int) -> None:
        """Count a request that was refused before a route was found for it."""
        self.count(UNMATCHED, method, status, None)

    def observe(self, ratios: Mapping[str, Sequence[float]]) -> None:
        """Record ratios of measured to predicted seconds; `ratios` are by model version."""
        for model, found in ratios.items():
            for ratio in found:
                self.ratios.labels(model).observe(ratio)

    def text(self) -> bytes:
        """All metrics, of all worker processes, in Prometheus' text format."""
        if self._multiprocess_dir is None:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together, path=self._multiprocess_dir)  # type: ignore[no-untyped-call]
        return generate_latest(together)


def install(app: APIFlask, metrics: Metrics) -> None:
    """Count every request of `app`."""

    def begin() -> None:
        g.started_s = time.perf_counter()
        metrics.in_flight.inc()

    def count(response: Response) -> Response:
        rule, method, started_s = request.url_rule, request.method, g.get("started_s")
        took_s = None if started_s is None else time.perf_counter() - started_s
        metrics.count(rule.rule if rule else UNMATCHED, method, response.status_code, took_s)
        return response

    def end(error: BaseException | None) -> None:
        if g.pop("started_s", None) is not None:
            metrics.in_flight.dec()

    app.before_request(begin)
    app.after_request(count)
    app.teardown_request(end)
