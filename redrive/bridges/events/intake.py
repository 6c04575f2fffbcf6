"""The intake of events from any broker: an event is stored and gets a run, or its failure is recorded.

    parse -> could it become a run? -> store it -> start its run, keyed by its dedupe key

Each step can be repeated: a message that is delivered twice, or after a crash, is the same event and the same run.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import asyncpg
from temporalio.service import RPCError

from redrive import Redrive
from redrive.bridges.events.settings import EVENT_LIMIT, EventSettings
from redrive.bridges.labels import Labels
from redrive.categories import TRANSIENT_CATEGORIES, Category
from redrive.classify import classify
from redrive.contracts import ERROR_TEXT_LIMIT
from redrive.errors import InvalidInput, TooLarge
from redrive.events import Envelope, event_document, event_id_for, event_labels, parse_envelope, pipeline_for
from redrive.logs import get_logger
from redrive.policy import EVENT
from redrive.postgres.database import Database
from redrive.postgres.tenancy import QUARANTINE
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from redrive.store.events.dead import Failure, NewDeadEvent, put_dead_event
from redrive.store.events.records import StoredEvent, put_event, put_run_of_event
from redrive.tracing import note, span

log = get_logger(__name__)

# Larger messages are parsed in a thread, so that the event loop is not blocked.
LONG: Final = 64 * 1024
_WAITED_FOR = TRANSIENT_CATEGORIES | {Category.MISSING_CONFIG}


@dataclass(frozen=True)
class Message:
    """A message as a broker delivered it."""

    stream: str
    id: str
    body: bytes
    carrier: Mapping[str, str] = field(default_factory=dict)
    """What names the trace that it belongs to."""
    tenant: str | None = None
    """Whose it is by the broker's own fields, for one that cannot be read."""
    full_size: int | None = None
    """How many bytes it had, if the body is only its beginning."""


@dataclass(frozen=True)
class Problem:
    """Why a message was not accepted, after how many attempts, and what is known of it without reading it again."""

    error: Exception
    tries: int
    labels: Labels


@dataclass(frozen=True)
class Accepted:
    """A message that is safe: its event is stored and its run exists."""

    event_id: str
    run_id: str
    is_new: bool


class Reaction(StrEnum):
    """What to do with a message that was not accepted."""

    REFUSE = "refuse"
    """Trying again cannot help: record it."""
    TRY_AGAIN = "try again"
    """It may be this message: try it again, as often as the policy says."""
    WAIT = "wait"
    """Something that every message needs is unavailable: wait for it, however long that takes."""


def judge(error: BaseException) -> Reaction:
    """Return what an error means for the message."""
    if isinstance(error, InvalidInput):
        return Reaction.REFUSE
    # The second is also what asyncpg raises when PostgreSQL crashes between a statement and its COMMIT.
    if isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError | RPCError):
        return Reaction.WAIT
    return Reaction.WAIT if classify(error, EVENT).category in _WAITED_FOR else Reaction.TRY_AGAIN


class Intake:
    """Accept messages. `tenant` gets those that name none; `pipelines` are by event type; `label_fields` by label."""

    def __init__(
        self,
        redrive: Redrive,
        database: Database,
        *,
        tenant: str,
        pipelines: Mapping[str, str],
        label_fields: Mapping[str, str],
        origin: str,
        redactor: Redactor,
    ) -> None:
        self._redrive = redrive
        self._database = database
        self._tenant = tenant
        self._pipelines = pipelines
        self._label_fields = label_fields
        self._origin = origin
        self._redactor = redactor

    async def read(self, message: Message) -> Envelope:
        """Read a message, or raise InvalidInput: first its size, then the rest, in a thread if it is long."""
        if message.full_size is not None:
            raise TooLarge(
                f"event: {message.full_size} bytes; the limit is {EVENT_LIMIT} (pass a reference to large data)"
            )
        try:
            if len(message.body) > LONG:
                return await asyncio.to_thread(parse_envelope, message.body)
            return parse_envelope(message.body)
        except (MemoryError, RecursionError) as error:
            raise TooLarge(f"event: {len(message.body)} bytes that cannot be read: {type(error).__name__}") from None

    async def take(self, message: Message, owner: str | None = None) -> Accepted:
        """Make a message safe, or raise why not. One that already belongs to a tenant stays there."""
        return await self.accept(message, await self.read(message), owner)

    async def accept(self, message: Message, envelope: Envelope, owner: str | None = None) -> Accepted:
        """Make a message safe that was already read."""
        with span("event.take", "consumer", carrier=message.carrier, source=message.stream):
            return await self._accept(envelope, owner)

    async def _accept(self, envelope: Envelope, owner: str | None) -> Accepted:
        tenant = owner or envelope.tenant or self._tenant
        if envelope.tenant not in {None, tenant}:
            raise InvalidInput(f"event: tenant {envelope.tenant!r} is not {tenant!r}, whose dead event it is")
        pipeline = pipeline_for(envelope.type, self._pipelines)
        # Before it is stored: a refused event must not block a corrected one with the same key.
        await self._redrive.steps(pipeline, event_document(event_id_for(tenant, envelope.dedupe_key), envelope))
        stored = await put_event(await self._database.pool(), tenant, envelope)
        event = stored.event
        run_id = event.run_id if stored.has_run else await self.start(event)
        note(event_id=event.id, event_type=event.type, tenant_id=tenant, run_id=run_id, pipeline=pipeline)
        if stored.is_new:
            log.info("event.accepted", **_fields(event, run_id), pipeline=pipeline)
        else:
            log.info("event.duplicate", **_fields(event, run_id), differs=_differs(event, envelope))
        return Accepted(event.id, run_id, stored.is_new)

    async def start(self, event: StoredEvent) -> str:
        """Start or find the run of a stored event, and return its id."""
        started = await self._redrive.start(
            self.pipeline(event),
            event.document,
            tenant=event.tenant,
            key=event.dedupe_key,
            correlation_id=event.correlation_id,
            user_id=event.user_id,
            event_id=event.id,
            labels=self.run_labels(event),
        )
        if started.run_id != event.run_id:
            await put_run_of_event(await self._database.pool(), event, started.run_id)
        return started.run_id

    def pipeline(self, event: StoredEvent) -> str:
        """Return the pipeline of an event."""
        return pipeline_for(event.type, self._pipelines)

    def run_labels(self, event: StoredEvent) -> dict[str, str]:
        """Return the labels of an event's runs."""
        return event_labels(event.payload, self._label_fields)

    async def bury(self, message: Message, problem: Problem) -> tuple[str, str]:
        """Record a message that was not accepted, unread, and return the record's tenant and id."""
        labels = problem.labels
        dead = NewDeadEvent(
            **self.failure(problem.error, problem.tries).model_dump(),
            tenant=labels.tenant or QUARANTINE,
            source_stream=message.stream,
            source_message_id=message.id,
            origin=self._origin,
            event_type=labels.event_type,
            dedupe_key=labels.dedupe_key,
            full_size=message.full_size,
        )
        dead_id = await put_dead_event(await self._database.pool(), dead, message.body)
        log.warning(
            "event.dead_lettered",
            dlq_id=dead_id,
            tenant_id=dead.tenant,
            source=message.stream,
            event_type=dead.event_type,
            attempt=dead.attempts,
            category=dead.category.value,
            error_type=dead.error_type,
            error=dead.error,
        )
        return dead.tenant, dead_id

    def labels(self, envelope: Envelope) -> Labels:
        """Return the labels of a message that was read; one that names no tenant gets the default tenant."""
        return Labels(envelope.tenant or self._tenant, envelope.type, envelope.dedupe_key)

    def failure(self, error: BaseException, attempts: int) -> Failure:
        """Return the stored form of an error."""
        text = str(error) or type(error).__name__
        return Failure(
            category=classify(error, EVENT).category,
            error_type=type(error).__name__,
            error=self._redactor.beginning(text, ERROR_TEXT_LIMIT),
            attempts=attempts,
        )


def make_intake(redrive: Redrive, database: Database, settings: Settings, events: EventSettings) -> Intake:
    """Build the intake of a bridge or of a replay."""
    return Intake(
        redrive,
        database,
        tenant=events.tenant,
        pipelines=events.pipelines,
        label_fields=events.labels,
        origin=f"redis:{events.stream}:{events.group}",
        redactor=settings.redactor(),
    )


def _fields(event: StoredEvent, run_id: str) -> dict[str, str | None]:
    return {
        "event_id": event.id,
        "event_type": event.type,
        "source": event.source,
        "tenant_id": event.tenant,
        "user_id": event.user_id,
        "correlation_id": event.correlation_id or run_id,
        "idempotency_key": event.dedupe_key,
        "run_id": run_id,
    }


def _differs(event: StoredEvent, envelope: Envelope) -> bool:
    return (event.type, event.source, event.payload) != (envelope.type, envelope.source, envelope.payload)
