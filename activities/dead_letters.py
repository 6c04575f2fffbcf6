"""Dead letters: what runs report of them to their tenant's queue, and their records in PostgreSQL.

A missing queue is started. Records are written, logged and counted.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from redrive.activities.alerts import AlertWorkflows
from redrive.activities.run_records import RunEnds
from redrive.classify import fingerprint
from redrive.contracts import Activity, RunEnd, Workflow
from redrive.dead_letter_queue import signal_queue
from redrive.dead_letters import (
    SNAPSHOT_LIMIT,
    Alert,
    Exhausted,
    ExhaustedReport,
    LetterId,
    LetterInput,
    LetterReport,
    LetterStatus,
    MalformedCommand,
    Outcome,
    OutcomeReport,
    ReportBatch,
    signal_of,
)
from redrive.documents import json_size
from redrive.errors import RedriveError
from redrive.fairness import turn_of
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.redaction.redactor import Redactor
from redrive.store.dead_letters import records as dead_letters
from redrive.store.runs import FinishedRun
from redrive.tracing import labelled, span, trace_headers

# How long a run waits for the database; after that, its tenant's queue writes for it.
LONGEST: Final = timedelta(seconds=1)
# A queue that writes more than one report at once keeps its workflow task this long.
GATHER: Final = timedelta(milliseconds=150)
_OMITTED = {"omitted": f"larger than {SNAPSHOT_LIMIT} bytes; the run has it"}

log = get_logger(__name__)


class LetterReports:
    """Report to dead letter queues. Reporting twice is harmless."""

    def __init__(
        self,
        client: Client,
        records: "LetterRecords",
        redactor: Redactor,
        *,
        task_queue: str,
        ends: RunEnds | None = None,
    ) -> None:
        """Without `ends`, a run's end is left to the run."""
        self._ends = ends
        self._client = client
        self._records = records
        self._redactor = redactor
        self._task_queue = task_queue

    @activity.defn(name=Activity.REPORT_EXHAUSTED)
    async def report_exhausted(self, report: ExhaustedReport) -> None:
        """Report to the queue that a step is exhausted: the facts, redacted."""
        await self.send(report.redacted(await self._snapshot(report), self._redactor.text, trace_headers()))

    async def send(self, report: LetterReport) -> None:
        """Send redacted facts to the queue."""
        await signal_queue(self._client, self._task_queue, report)

    @activity.defn(name=Activity.REPORT_OUTCOME)
    async def report_outcome(self, letter: LetterId, outcome: Outcome, end: RunEnd | None) -> bool:
        """Record how a replay ended, and with it the run, if it has; return whether the run's end was taken.

        If that fails, the queue records the outcome, and the run reports its end by itself.
        """
        run = await self._ends.finished(end) if end and self._ends and not end.when_closed else None
        try:
            async with asyncio.timeout(LONGEST.total_seconds()):
                status = await self._records.put_outcome(letter, outcome, run)
        except (RedriveError, *DATABASE_ERRORS) as error:
            log.warning("dead_letter.outcome_not_written", dlq_id=letter.workflow_id, error_type=type(error).__name__)
            status = None
        if status is None:
            await self.send(OutcomeReport(letter=letter, outcome=outcome))
        return status is not None and run is not None

    @activity.defn(name=Activity.HAND_OVER_REPORTS)
    async def hand_over_reports(self, batch: ReportBatch) -> None:
        """Give each report to the workflow of its dead letter, which is started if it does not run."""
        for report in batch.reports:
            letter = report.letter
            await self._client.start_workflow(
                Workflow.DEAD_LETTER,
                LetterInput(letter=letter),
                id=letter.workflow_id,
                task_queue=self._task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal=signal_of(report),
                start_signal_args=[report],
                static_summary=f"{letter.module}, tenant {letter.tenant}",
                priority=turn_of(letter.tenant),
            )

    async def _snapshot(self, report: ExhaustedReport) -> object:
        # Measured first: what is not kept is not redacted.
        if json_size(report.document) > SNAPSHOT_LIMIT:
            return _OMITTED
        payload = await self._redactor.value_aside(report.document)
        return _OMITTED if json_size(payload) > SNAPSHOT_LIMIT else payload


class LetterRecords:
    """Keep the records of dead letters."""

    def __init__(self, database: Database, alerts: AlertWorkflows, redactor: Redactor, metrics: Metrics) -> None:
        self._database = database
        self._alerts = alerts
        self._redactor = redactor
        self._metrics = metrics

    @activity.defn(name=Activity.RECORD_REPORTS)
    async def record_reports(self, batch: ReportBatch) -> list[int]:
        """Write reports in their sequence; return the places of those that could not be written.

        Where many arrive, the queue's workflow task stays open for a moment: the next one has more.
        """
        left: list[int] = []
        for place, report in enumerate(batch.reports):
            try:
                is_written = await self._record(report)
            except (RedriveError, *DATABASE_ERRORS) as error:
                log.warning(
                    "dead_letter.not_written", dlq_id=report.letter.workflow_id, error_type=type(error).__name__
                )
                return [*left, *range(place, len(batch.reports))]
            except Exception:
                # The others must not wait for it.
                log.exception("dead_letter.report_failed", dlq_id=report.letter.workflow_id)
                is_written = False
            if not is_written:
                left.append(place)
        if len(batch.reports) > 1:
            await asyncio.sleep(GATHER.total_seconds())
        return left

    async def _record(self, report: LetterReport) -> bool:
        if isinstance(report, Exhausted):
            await self.record_exhausted(report)
            return True
        return await self.record_outcome(report.letter, report.outcome) is not None

    @activity.defn(name=Activity.RECORD_EXHAUSTED)
    async def record_exhausted(self, message: Exhausted) -> None:
        """Write the record, or append a cycle to it, and have the alert raised that is due."""
        letter = message.letter
        # A queue writes for many runs: what it does for each belongs to the trace of that one.
        with (
            labelled(message.labels),
            span("dead_letter.record", "consumer", carrier=message.trace, run_id=letter.run_id, step=letter.step),
        ):
            await self._record_exhausted(message)

    async def _record_exhausted(self, message: Exhausted) -> None:
        pool = await self._database.pool()
        recorded = await dead_letters.record_exhausted(pool, message, self._alerts.window)
        if message.again and not recorded.is_new:
            log.warning("dead_letter.reported_again", dlq_id=message.letter.workflow_id, run_id=message.letter.run_id)
            return
        with structlog.contextvars.bound_contextvars(**message.labels):
            log.warning(
                "run.dead_lettered",
                run_id=message.letter.run_id,
                tenant_id=message.letter.tenant,
                step=message.letter.step,
                dlq_id=message.letter.workflow_id,
                category=message.cycle.category.value,
                cycle=message.cycle.cycle,
                correlation_id=message.correlation_id,
            )
        if recorded.is_new:
            took = max(datetime.now(UTC) - message.at, timedelta(0))
            self._metrics.moved(message.pipeline, message.letter.module, message.cycle.category.value, took)
            if message.cycle.cycle > 1:
                self._metrics.replayed("exhausted")
        alert = _alert(message, max(recorded.alert_count, 0))
        if recorded.alert_count < 0:
            await self._alerts.follow_up(alert)
        elif alert.count:
            await self._alerts.raise_now(alert, message.cycle.cycle)

    @activity.defn(name=Activity.RECORD_OUTCOME)
    async def record_outcome(self, letter: LetterId, outcome: Outcome) -> LetterStatus | None:
        """Record how a replay ended, and return the record's status; None if there is none, or it is behind."""
        return await self.put_outcome(letter, outcome)

    async def put_outcome(
        self, letter: LetterId, outcome: Outcome, run: FinishedRun | None = None
    ) -> LetterStatus | None:
        """Record how a replay ended, and with it the run, if it has."""
        status = await dead_letters.put_outcome(await self._database.pool(), letter, outcome, run=run)
        if status is None:
            return None
        self._metrics.replayed(outcome.ending.value)
        log.info(
            "dead_letter.outcome",
            dlq_id=letter.workflow_id,
            run_id=letter.run_id,
            tenant_id=letter.tenant,
            outcome=outcome.ending.value,
        )
        return status

    @activity.defn(name=Activity.RECORD_REFUSAL)
    async def record_refusal(self, letter: LetterId, malformed: MalformedCommand) -> None:
        """Record a command that could not be read."""
        info = activity.info()
        # Recorded once, by whichever attempt and activity. A workflow of an older worker does not name the message.
        once = malformed.message_id or f"{info.workflow_run_id}:{info.activity_id}"
        await dead_letters.put_malformed(await self._database.pool(), letter, malformed, once)
        log.warning("dead_letter.malformed_command", dlq_id=letter.workflow_id, error=malformed.problem)


def _alert(message: Exhausted, count: int) -> Alert:
    return Alert(
        letter=message.letter,
        pipeline=message.pipeline,
        fingerprint=fingerprint(message.pipeline, message.cycle),
        category=message.cycle.category.value,
        error_type=message.cycle.error_type,
        message=message.cycle.message[:1000],
        attempts=len(message.cycle.attempts),
        count=count,
    )
