"""The retry scheduler's metrics, named as in its specification. Served for Prometheus on HTTP_PORT."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_DRIFT_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 600)


class RetryMetrics:
    """All counters, gauges and histograms of a bridge process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._scheduled = Counter(
            "retries_scheduled_total", "Messages stored for a retry", ["queue"], registry=self.registry
        )
        self._executed = Counter(
            "retries_executed_total", "Retries by outcome", ["queue", "status"], registry=self.registry
        )
        self._exhausted = Counter(
            "retries_exhausted_total",
            "Messages moved to manual review after max retries",
            ["queue"],
            registry=self.registry,
        )
        self._malformed = Counter("retries_malformed_total", "Messages that could not be read", registry=self.registry)
        self._depth = Gauge("retry_queue_depth", "Pending retry tasks", registry=self.registry)
        self._drift = Histogram(
            "retry_drift_seconds",
            "From the time a retry was due to the broker's confirmation",
            buckets=_DRIFT_BUCKETS,
            registry=self.registry,
        )

    def scheduled(self, by_queue: Mapping[str, int]) -> None:
        """Count messages that were stored."""
        for queue, count in by_queue.items():
            self._scheduled.labels(queue).inc(count)

    def sent(self, by_queue: Mapping[str, int], drifts: Iterable[timedelta]) -> None:
        """Count retries that the broker confirmed, and their delay."""
        for queue, count in by_queue.items():
            self._executed.labels(queue, "success").inc(count)
        for drift in drifts:
            self._drift.observe(max(0.0, drift.total_seconds()))

    def failed(self, queue: str) -> None:
        """Count a retry that the broker refused."""
        self._executed.labels(queue, "failed").inc()

    def exhausted(self, queue: str) -> None:
        """Count a message whose retries are used up."""
        self._exhausted.labels(queue).inc()

    def malformed(self, count: int) -> None:
        """Count messages that could not be read."""
        self._malformed.inc(count)

    def depth(self, count: int) -> None:
        """Set how many messages are waiting."""
        self._depth.set(count)
