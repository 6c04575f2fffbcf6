"""What a bridge does with one row: start its run, or have its parked run replayed.

Each may be repeated at any time: the run id is computed from the row's key, and a replay has the request id that
outbox_replay() gave it. So a row that another bridge has handled, and that died before it could say so, is handled
again to the same effect.
"""

import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from redrive import Redrive
from redrive.bridges.events.intake import Reaction, judge
from redrive.bridges.outbox.fates import fate_of
from redrive.classify import classify
from redrive.contracts import ERROR_TEXT_LIMIT
from redrive.dead_letters import LetterId, Replay
from redrive.errors import Unavailable
from redrive.keys import check_identifiers
from redrive.logs import get_logger
from redrive.outbox.rows import OutboxEntry, OutboxStatus
from redrive.policy import EVENT
from redrive.postgres.database import Database
from redrive.postgres.tenancy import transaction
from redrive.postgres.values import clean
from redrive.redaction.redactor import Redactor
from redrive.store.audit import Action, Entry, EventRef, write
from redrive.store.dead_letters.commands import first_answer
from redrive.store.run_fates import Followed, fates_of
from redrive.tracing import labelled, note, span

# No worker has answered the replay yet. The command is in the run's history: asking again gets its answer.
_UNANSWERED: Final = timedelta(seconds=2)

log = get_logger(__name__)


@dataclass(frozen=True)
class Started:
    """The row has its run, since a moment of the monotonic clock."""

    run_id: str
    since: float = field(default_factory=time.monotonic)

    def ago(self) -> float:
        """Return how many seconds ago."""
        return time.monotonic() - self.since


@dataclass(frozen=True)
class NotStarted:
    """The row has no run, or was not replayed: it is tried again after a while, or it has failed."""

    error: str
    category: str
    again: timedelta | None = None


Outcome = Started | NotStarted


class RowHandler:
    """Handle rows. Raises only what every row would meet: an outage."""

    def __init__(self, redrive: Redrive, database: Database, redactor: Redactor) -> None:
        self._redrive = redrive
        self._database = database
        self._redactor = redactor

    async def handle(self, row: OutboxEntry) -> Outcome:
        """Start or replay the run of a row, or return why not."""
        try:
            with span("outbox.take", "consumer", pipeline=row.pipeline, tenant_id=row.tenant):
                outcome = await self._act(row)
        except Exception as error:
            if judge(error) is Reaction.WAIT:
                raise
            outcome = self._failed(row, error)
        _tell(row, outcome)
        return outcome

    async def _act(self, row: OutboxEntry) -> Outcome:
        if row.replay_request and row.run_id and row.failed_step:
            return await self._replay(row, row.run_id, row.failed_step)
        if row.replay_request:
            await self._note_replay(row)
        started = await self._redrive.start(
            row.pipeline,
            row.payload,
            tenant=row.tenant,
            key=row.key,
            correlation_id=row.correlation_id,
            user_id=row.user_id,
            labels=_labels(row),
        )
        # Only now: before, nobody has checked them.
        with labelled(_labels(row)):
            note(run_id=started.run_id)
        return Started(started.run_id)

    async def _replay(self, row: OutboxEntry, run_id: str, step: str) -> Outcome:
        letter, command = LetterId(tenant=row.tenant, run_id=run_id, step=step), _command(row)
        pool = await self._database.pool()
        answer = await first_answer(pool, letter, command.request_id)
        try:
            answer = answer or await self._redrive.dead_letters.send(letter, command)
        except Unavailable as error:
            return NotStarted(self._text(error), "network", _UNANSWERED)
        if answer.accepted:
            return Started(run_id)
        # Somebody else may have replayed or closed it: then the row follows the run.
        fate = (await fates_of(pool, [Followed(row.tenant, run_id, step)])).get(run_id)
        told = fate_of(fate) if fate else None
        is_parked = told and told["status"] is OutboxStatus.FAILED and not told.get("ended")
        return NotStarted(f"not replayed: {answer.message}", "conflict") if is_parked else Started(run_id)

    async def _note_replay(self, row: OutboxEntry) -> None:
        """Record a replay of a row that has no run: where there is one, the run records its commands itself."""
        command = _command(row)
        pool = await self._database.pool()
        about = EventRef(row.tenant, f"outbox-{row.event_id}")
        async with transaction(pool, row.tenant, alone_with=about.id) as connection:
            known = await connection.fetchval(
                "SELECT true FROM audit_log WHERE tenant = $1 AND dead_letter = $2 AND request_id = $3",
                *(row.tenant, about.id, clean(command.request_id)),
            )
            if not known:
                entry = Entry(
                    action=Action.EVENT_REPLAY_REQUESTED,
                    letter=about,
                    actor=command.requested_by,
                    reason=command.reason,
                    request_id=command.request_id,
                    after={"generation": row.generation, "key": row.key, "pipeline": row.pipeline},
                )
                await write(connection, entry)

    def _failed(self, row: OutboxEntry, error: Exception) -> NotStarted:
        tries, category = row.attempts + 1, classify(error, EVENT).category
        again = None
        if judge(error) is not Reaction.REFUSE and tries < EVENT.max_attempts:
            again = EVENT.wait_after(tries, category, None, random.random())  # noqa: S311  # jitter
        return NotStarted(self._text(error), category.value, again)

    def _text(self, error: Exception) -> str:
        return clean(self._redactor.beginning(str(error) or type(error).__name__, ERROR_TEXT_LIMIT))


def _command(row: OutboxEntry) -> Replay:
    check_identifiers(replayed_by=row.replayed_by)
    return Replay(
        request_id=row.replay_request or "",
        requested_by=row.replayed_by or "",
        reason=row.replay_reason or f"outbox_replay() with generation {row.generation}",
    )


def _labels(row: OutboxEntry) -> dict[str, str]:
    return {name: str(value) for name, value in row.labels.items()}


def _tell(row: OutboxEntry, outcome: Outcome) -> None:
    facts: dict[str, Any] = {"event_id": str(row.event_id), "tenant_id": row.tenant, "pipeline": row.pipeline}
    match outcome:
        case Started() if row.replay_request:
            facts |= {"run_id": outcome.run_id, "actor": row.replayed_by}
            log.info("outbox.replayed", **(_labels(row) | facts))
        case Started():
            log.info("outbox.started", **(_labels(row) | facts | {"run_id": outcome.run_id}))
        case NotStarted(again=None):
            log.warning("outbox.failed", **facts, category=outcome.category, error=outcome.error)
        case NotStarted():
            log.info("outbox.retrying", **facts, category=outcome.category, error=outcome.error)
