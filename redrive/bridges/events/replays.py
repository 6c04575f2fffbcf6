"""Replay of events: a whole event, some of its projectors, or a message that could not become a run.

A projector that failed for good is a dead letter of a parked run: its replay continues that run. Projectors that have
succeeded run again in a new run of their own, so that the others are not touched. They read the stored payload, and the
event keeps its dedupe key.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field
from pydantic_core import from_json, to_json
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from redrive import Redrive
from redrive.bridges.events.intake import Intake, Message, make_intake
from redrive.bridges.events.settings import EventSettings
from redrive.client import ANSWER_TIMEOUT
from redrive.contracts import Query, RunInput, StepSnapshot
from redrive.dead_letters import Answer, LetterId, Mode, Replay, RunDocument
from redrive.documents import merge_patch
from redrive.errors import EventNotFound, InvalidInput, RedriveError, RunNotFound, Unavailable, VersionChanged
from redrive.keys import run_id_for_key
from redrive.postgres.database import Database
from redrive.postgres.tenancy import QUARANTINE
from redrive.settings import Settings
from redrive.starts import start_run
from redrive.store.broker_records import assign_dead_event, check_assignment
from redrive.store.dead_letters.commands import first_answer
from redrive.store.events.dead import DeadEvent, Failure, begin_replay, end_replay, get_dead_event, message_of
from redrive.store.events.records import (
    NewReplay,
    Projection,
    ProjectionStatus,
    StoredEvent,
    get_event,
    projections_of,
    put_replay,
    put_start,
)


class Replayed(BaseModel):
    """The outcome of a command to replay something."""

    id: str = Field(description="the event, or the dead event")
    projectors: list[str] = Field(default=[], description="those that run again; none: all from the start")
    run_id: str | None = Field(default=None, description="the run to wait for")
    accepted: bool
    message: str


class EventReplays:
    """Carry out commands to replay events."""

    def __init__(self, client: Client, task_queue: str, redrive: Redrive, database: Database, intake: Intake) -> None:
        self._client = client
        self._task_queue = task_queue
        self._redrive = redrive
        self._database = database
        self._intake = intake

    async def event(
        self, tenant: str | None, event_id: str, projectors: Sequence[str], command: Replay
    ) -> list[Replayed]:
        """Replay an event: the named projectors, else those that failed, else all of them."""
        pool = await self._database.pool()
        event = await get_event(pool, tenant, event_id)
        if event is None:
            raise EventNotFound(f"no event has the id {event_id[:200]!r}; `redrive events list` shows those there are")
        records = await projections_of(pool, event.tenant, event.id)
        if projectors:
            return await self._named(event, projectors, records, command)
        parked = await self._parked(records, command)
        if parked:
            return [await self.projection(record, command) for record in parked]
        return [await self._whole(event, command)]

    async def _parked(self, records: Sequence[Projection], command: Replay) -> list[Projection]:
        """Return projectors that failed for good, and those that an earlier delivery of this command found failed."""
        return [
            record
            for record in records
            if record.status is ProjectionStatus.FAILED or await self._answered(record, command)
        ]

    async def _answered(self, record: Projection, command: Replay) -> Answer | None:
        return await first_answer(await self._database.pool(), _letter(record), command.request_id)

    async def projection(self, record: Projection, command: Replay) -> Replayed:
        """Replay a projector that failed for good: its parked run continues."""
        try:
            answer = await self._answered(record, command) or await self._redrive.dead_letters.send(
                _letter(record), command
            )
        except RedriveError as error:
            return _replayed(record.event_id, [record.projector], record.run_id, accepted=False, message=str(error))
        return _replayed(
            record.event_id, [record.projector], record.run_id, accepted=answer.accepted, message=answer.message
        )

    async def dead_event(
        self,
        tenant: str | None,
        dead_id: str,
        command: Replay,
        versions: frozenset[str] | None = None,
        *,
        assign_to: str | None = None,
        message: str | None = None,
    ) -> Answer:
        """Try again to make a run of a stored message, in the tenant that has it.

        One in quarantine has none: it is first assigned to `assign_to`. The command's `input_patch` edits a message
        that is a JSON object; `message` takes the place of any other one. The stored message stays as it was received.
        """
        pool = await self._database.pool()
        known = await get_dead_event(pool, tenant, dead_id)
        if known is None:
            raise _no_dead_event(dead_id)
        if check_assignment(known.tenant, assign_to):
            known, versions = await self._assigned(known, assign_to or "", command, versions), None
        edited = message is not None or command.input_patch is not None
        dead, answer = await begin_replay(pool, known, command, versions, edited=edited)
        return answer or await end_replay(pool, dead, await self._outcome(dead, command, message), command)

    async def _assigned(
        self, dead: DeadEvent, tenant: str, command: Replay, versions: frozenset[str] | None
    ) -> DeadEvent:
        """Take a dead event out of quarantine, and return it as the tenant sees it."""
        if versions is not None and str(dead.version) not in versions:
            raise VersionChanged("dead event", status=dead.status, version=str(dead.version))
        pool = await self._database.pool()
        await assign_dead_event(pool, dead.id, tenant, command)
        # Still in quarantine: it was closed there. The command's answer says so, and is recorded.
        found = await get_dead_event(pool, tenant, dead.id) or await get_dead_event(pool, QUARANTINE, dead.id)
        if found is None:
            raise _no_dead_event(dead.id)
        return found

    async def _outcome(self, dead: DeadEvent, command: Replay, written: str | None) -> Failure | tuple[str, str]:
        body = await message_of(await self._database.pool(), dead)
        try:
            if command.input_patch is not None:
                body = _edited(body, command.input_patch)
            elif written is not None:
                body = written.encode("utf-8", "replace")
            message = Message(dead.source_stream, dead.source_message_id, body, full_size=dead.full_size)
            accepted = await self._intake.take(message, dead.tenant)
        except (RedriveError, RPCError) as error:
            return self._intake.failure(error, 1)
        return accepted.event_id, accepted.run_id

    async def _whole(self, event: StoredEvent, command: Replay) -> Replayed:
        """Start an event's run if it never started, or run all projectors again if it has ended."""
        try:
            view = await self._redrive.status(event.run_id)
        except RunNotFound:
            pool = await self._database.pool()
            if not await projections_of(pool, event.tenant, event.id):
                await put_start(pool, event, command)
                run_id = await self._intake.start(event)
                return _replayed(event.id, [], run_id, accepted=True, message=f"run {run_id} is started")
        else:
            if not view.status.closed:
                message = f"run {event.run_id} is {view.status}: there is nothing to replay yet"
                return _replayed(event.id, [], event.run_id, accepted=False, message=message)
        steps = await self._redrive.steps(self._intake.pipeline(event), event.document)
        return await self._run_beside(event, steps, command)

    async def _named(
        self, event: StoredEvent, projectors: Sequence[str], records: Sequence[Projection], command: Replay
    ) -> list[Replayed]:
        steps = await self._redrive.steps(self._intake.pipeline(event), event.document)
        known = [step.name for step in steps]
        for name in projectors:
            if name not in known:
                raise InvalidInput(f"projector {name!r}: events of type {event.type!r} have {', '.join(known)}")
        by_name = {record.projector: record for record in records if record.projector in projectors}
        for record in by_name.values():
            if record.status is ProjectionStatus.REPLAYING and not await self._answered(record, command):
                raise InvalidInput(f"projector {record.projector!r} is being replayed: wait for its outcome")
        parked = await self._parked(list(by_name.values()), command)
        alone = command.model_copy(update={"mode": Mode.STEP_ONLY})
        done = [await self.projection(record, alone) for record in parked]
        names = {record.projector for record in parked}
        rest = [step for step in steps if step.name in projectors and step.name not in names]
        return done + ([await self._run_beside(event, rest, command)] if rest else [])

    async def _run_beside(self, event: StoredEvent, steps: list[StepSnapshot], command: Replay) -> Replayed:
        """Start a separate run for some projectors. The same command again gives the same run."""
        names = [step.name for step in steps]
        mark = hashlib.sha256("\n".join([command.request_id, *names]).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        key = f"{event.id}:replay:{mark}"
        run_id = run_id_for_key(event.tenant, key)
        run = RunInput(
            pipeline=self._intake.pipeline(event),
            payload=event.document | await self._outputs(event, leaving_out=names),
            tenant=event.tenant,
            steps=steps,
            key=key,
            correlation_id=event.correlation_id,
            user_id=event.user_id,
            event_id=event.id,
            labels=self._intake.run_labels(event),
        )
        await put_replay(await self._database.pool(), NewReplay(key, event.tenant, event.id, run_id, names), command)
        try:
            await start_run(self._client, self._task_queue, run_id, run)
        except RPCError as error:
            raise Unavailable(f"Temporal did not start run {run_id}: {error.message[:300]}; try again") from error
        message = f"run {run_id} runs {', '.join(names)} again"
        return _replayed(event.id, names, run_id, accepted=True, message=message)

    async def _outputs(self, event: StoredEvent, leaving_out: Sequence[str]) -> dict[str, Any]:
        """Return the outputs of the event's other projectors, while Temporal keeps them: some projectors read them."""
        try:
            document: RunDocument = await self._client.get_workflow_handle(event.run_id).query(
                Query.DOCUMENT, result_type=RunDocument, rpc_timeout=ANSWER_TIMEOUT
            )
        except (RPCError, WorkflowQueryFailedError):
            return {}
        outputs = document.run.state.outputs if document.run.state else {}
        return {name: output for name, output in outputs.items() if name not in leaving_out}


def _edited(body: bytes, patch: dict[str, Any]) -> bytes:
    """Return a message with an edit, or raise InvalidInput if it is not a JSON object."""
    try:
        document = from_json(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidInput("the message is not a JSON object: it has no fields to edit; write it again as a whole")
    return to_json(merge_patch(document, patch))


def make_replays(
    client: Client, redrive: Redrive, database: Database, settings: Settings, events: EventSettings
) -> EventReplays:
    """Build what carries out commands to replay events. It needs no broker."""
    intake = make_intake(redrive, database, settings, events)
    return EventReplays(client, settings.task_queue, redrive, database, intake)


def _no_dead_event(dead_id: str) -> EventNotFound:
    return EventNotFound(f"no dead event has the id {dead_id[:200]!r}; `redrive events dead` shows those there are")


def _letter(record: Projection) -> LetterId:
    return LetterId(tenant=record.tenant, run_id=record.run_id, step=record.projector)


def _replayed(what: str, projectors: list[str], run_id: str | None, *, accepted: bool, message: str) -> Replayed:
    return Replayed(id=what, projectors=projectors, run_id=run_id, accepted=accepted, message=message)
