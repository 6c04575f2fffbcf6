"""The record of a dead letter in Postgres: written, read, logged and counted."""

from datetime import UTC, datetime, timedelta

from temporalio import activity

from redrive.activities.command_texts import storable
from redrive.activities.follow_ups import FollowUps
from redrive.contracts import Activity
from redrive.dead_letters import (
    Alert,
    Answer,
    Continue,
    Exhausted,
    LetterId,
    LetterRecorded,
    LetterState,
    LetterStatus,
    MalformedCommand,
    Outcome,
)
from redrive.fingerprints import fingerprint
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.store.dead_letters import records as dead_letters
from redrive.store.runs.commands import put_continue

log = get_logger(__name__)


class LetterRecords:
    """Keep the records of dead letters."""

    def __init__(self, database: Database, follow_ups: FollowUps, redactor: Redactor, metrics: Metrics) -> None:
        self._database = database
        self._follow_ups = follow_ups
        self._redactor = redactor
        self._metrics = metrics

    @activity.defn(name=Activity.RECORD_EXHAUSTED)
    async def record_exhausted(self, message: Exhausted) -> LetterRecorded:
        """Write the record, or append a cycle to it."""
        pool = await self._database.pool()
        recorded = await dead_letters.record_exhausted(pool, message, self._follow_ups.window)
        if message.again and not recorded.is_new:
            return LetterRecorded(state=await self._reopened(message, recorded.state))
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
            self._metrics.moved(message.pipeline, message.letter.step, message.cycle.category.value, took)
            if message.cycle.cycle > 1:
                self._metrics.replayed("exhausted")
        alert = _alert(message, max(recorded.alert_count, 0))
        if recorded.alert_count < 0:
            await self._follow_ups.plan(alert)
        return LetterRecorded(state=recorded.state, alert=alert if alert.count else None)

    async def _reopened(self, message: Exhausted, state: LetterState) -> LetterState:
        """Reopen a record whose last command was lost on its way to the run."""
        letter = message.letter
        if not await dead_letters.reopen(await self._database.pool(), letter, message.cycle.cycle):
            return state
        log.warning("dead_letter.reopened", dlq_id=letter.workflow_id, run_id=letter.run_id, tenant_id=letter.tenant)
        return state.model_copy(update={"status": LetterStatus.PENDING, "orphaned": False})

    @activity.defn(name=Activity.RECORD_OUTCOME)
    async def record_outcome(self, letter: LetterId, outcome: Outcome) -> None:
        """Record how a replay ended."""
        await dead_letters.put_outcome(await self._database.pool(), letter, outcome)
        self._metrics.replayed(outcome.ending.value)
        log.info(
            "dead_letter.outcome",
            dlq_id=letter.workflow_id,
            run_id=letter.run_id,
            tenant_id=letter.tenant,
            outcome=outcome.ending.value,
        )

    @activity.defn(name=Activity.RECORD_REFUSAL)
    async def record_refusal(self, letter: LetterId, malformed: MalformedCommand) -> None:
        """Record a command that could not be read."""
        info = activity.info()
        # The same for every attempt of this activity, so that it is recorded once.
        once = f"{info.workflow_run_id}:{info.activity_id}"
        await dead_letters.put_malformed(await self._database.pool(), letter, malformed, once)
        log.warning("dead_letter.malformed_command", dlq_id=letter.workflow_id, error=malformed.problem)

    @activity.defn(name=Activity.RECORD_CONTINUE)
    async def record_continue(self, letter: LetterId, command: Continue, answer: Answer) -> None:
        """Record a `continue` and its answer."""
        written = storable(command, self._redactor)
        await put_continue(await self._database.pool(), letter, written, answer)
        log.info(
            "run.continued",
            run_id=letter.run_id,
            tenant_id=letter.tenant,
            request_id=command.request_id,
            user_id=command.requested_by,
            accepted=answer.accepted,
        )

    @activity.defn(name=Activity.LOAD_LETTER)
    async def load_letter(self, letter: LetterId) -> LetterState | None:
        """Read the record's state."""
        return await dead_letters.load_state(await self._database.pool(), letter)


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
