"""Redrive's metrics. The worker serves them for Prometheus, next to Temporal's own."""

from datetime import timedelta

from temporalio import activity
from temporalio.common import MetricMeter

# A record waits as long as Postgres is down: Temporal's own buckets end at 10 s.
BUCKETS = {"workflow_dlq_record_seconds": (0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120, 600, 3600)}


class Metrics:
    """All counters, gauges and histograms of a process."""

    def __init__(self, meter: MetricMeter = MetricMeter.noop) -> None:
        self._attempts = meter.create_counter("workflow_step_attempts_total", "Attempts of steps")
        self._retries = meter.create_counter("workflow_step_retries_total", "Failed attempts with another to follow")
        self._moves = meter.create_counter("workflow_dlq_moves_total", "Steps that became dead letters")
        self._replays = meter.create_counter("workflow_dlq_replays_total", "Replays by outcome")
        self._letters = meter.create_gauge("workflow_dlq_letters", "Dead letters by status")
        self._oldest = meter.create_gauge_float("workflow_dlq_oldest_seconds", "Age of the oldest open one", "s")
        self._retrying = meter.create_gauge("workflow_steps_retrying", "Steps that wait for another attempt or make it")
        self._record = meter.create_histogram_timedelta(
            "workflow_dlq_record_seconds", "Time from exhaustion to the record", "s"
        )

        self._bulk_items = meter.create_counter("workflow_bulk_items_total", "Items of bulk operations that have ended")

    def attempted(self, pipeline: str, step: str) -> None:
        """Count an attempt."""
        self._attempts.add(1, {"pipeline": pipeline, "step": step})

    def retried(self, pipeline: str, step: str, category: str) -> None:
        """Count a failed attempt that is followed by another."""
        self._retries.add(1, {"pipeline": pipeline, "step": step, "category": category})

    def moved(self, pipeline: str, step: str, category: str, took: timedelta) -> None:
        """Count a dead letter, and the time until its record was written."""
        self._moves.add(1, {"pipeline": pipeline, "step": step, "category": category})
        self._record.record(took, {"pipeline": pipeline})

    def replayed(self, outcome: str) -> None:
        """Count a replay's outcome: accepted, refused, succeeded, exhausted, blocked, canceled or orphaned."""
        self._replays.add(1, {"outcome": outcome})

    def bulk_item(self, verb: str, status: str) -> None:
        """Count an item of a bulk operation that has ended: APPLIED, SKIPPED or FAILED."""
        self._bulk_items.add(1, {"verb": verb, "status": status})

    def backlog(self, by_status: dict[str, int], oldest: timedelta, retrying: int) -> None:
        """Set the number of dead letters, the age of the oldest open one, and the number of steps in retry."""
        for status, count in by_status.items():
            self._letters.set(count, {"status": status})
        self._oldest.set(oldest.total_seconds())
        self._retrying.set(retrying)


def count_tokens(model: str, input_tokens: int, output_tokens: int) -> None:
    """Count the tokens that a call to a language model used, if it is made in a step."""
    if not activity.in_activity():
        return
    counter = activity.metric_meter().create_counter("workflow_llm_tokens_total", "Tokens of language models")
    counter.add(max(0, input_tokens), {"model": model, "kind": "input"})
    counter.add(max(0, output_tokens), {"model": model, "kind": "output"})
