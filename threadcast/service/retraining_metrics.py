"""Prometheus metrics of retraining, which the service shows among its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS_S = (1.0, 3.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0)
"""Bounds of the histogram of seconds that a run takes: from 60 ops to a million samples."""

OUTCOMES = ("promoted", "kept", "failed")
VERDICTS = ("better", "no_better", "lowers_golden")


class RetrainingMetrics:
    """The metrics of one process that retrains or watches one that does."""

    def __init__(self, alias: str, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.alias = alias
        self.runs = Counter(
            "threadcast_retraining_runs", "Times that a candidate was trained or that failed, by how it ended.",
            ("alias", "outcome"), registry=self.registry,
        )  # fmt: skip
        self.candidates = Counter(
            "threadcast_retraining_candidates", "Candidates that were judged, by the verdict.", ("alias", "verdict"),
            registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "threadcast_retraining_seconds", "Seconds that a run took.", ("alias",), buckets=BUCKETS_S,
            registry=self.registry,
        )  # fmt: skip
        self.restarts = Counter(
            "threadcast_retrainer_restarts", "Times that the process that retrains ended and was started again.",
            ("alias",), registry=self.registry,
        )  # fmt: skip
        self.holds = Gauge(
            "threadcast_retrainer_holds_store", "1 where this service is the one that retrains from its store.",
            ("alias",), registry=self.registry, multiprocess_mode="livemax",
        )  # fmt: skip
        self.drift = Gauge(
            "threadcast_drift_factor", "Typical factor by which new times are off the forecast; kind is empty for all.",
            ("machine", "kind"), registry=self.registry, multiprocess_mode="mostrecent",
        )  # fmt: skip
        self.golden = Gauge(
            "threadcast_golden_accuracy", "Accuracy of the champion on the golden set, when it was last compared.",
            ("alias",), registry=self.registry, multiprocess_mode="mostrecent",
        )  # fmt: skip

    def start(self) -> None:
        """Show zeros in place of nothing, so that rates are known from the first run on."""
        for outcome in OUTCOMES:
            self.runs.labels(self.alias, outcome)
        for verdict in VERDICTS:
            self.candidates.labels(self.alias, verdict)
