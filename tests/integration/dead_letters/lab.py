"""Runs whose steps fail as a test says, and what became of them: in Temporal, in the records, in the audit log."""

import asyncio
import json
import uuid
from collections.abc import MutableSet
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio.client import Client, WorkflowHandle

from redrive import STEP, ModuleContext, NoJitter, Pipeline, Redrive, Registry, RunStatus, Terminal, Transient
from redrive.contracts import RunView
from redrive.dead_letter_queue import queue_id
from redrive.dead_letters import COMMANDS, Answer, LetterId, LetterStatus, Verb
from redrive.errors import Unavailable
from tests.conftest import eventually
from tests.database import fetch

QUICK = STEP.model_copy(update={"base": timedelta(milliseconds=20), "jitter": NoJitter(), "max_attempts": 2})
SLOW = QUICK.model_copy(update={"base": timedelta(minutes=1)})
STEPS = ("first", "second", "third")


class Place(BaseModel):
    """A nested part of the input."""

    city: str
    street: str | None = None


class Given(BaseModel):
    """What each step reads."""

    case: str
    n: int = 0
    note: str | None = None
    place: Place | None = None


class Done(BaseModel):
    """What each step returns."""

    step: str
    n: int
    extra: str = "default"


class ThirdGiven(Given):
    """What the last step reads: the second one's output, too."""

    second: Done | None = None


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    step: str
    given: Given
    key: str
    run_id: str
    attempt: int
    max_attempts: int


@dataclass
class Service:
    """The outside world of one case: what is broken, and what it was asked. It answers while it is open."""

    broken: MutableSet[str] = field(default_factory=set)
    flaky: set[str] = field(default_factory=set)
    error: str = "the service is broken"
    calls: list[Call] = field(default_factory=list)
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.is_open.set()

    def note(self, call: Call) -> None:
        """Remember a call."""
        self.calls.append(call)

    @property
    def called(self) -> list[str]:
        """The names of the steps that were called."""
        return [call.step for call in self.calls]


SERVICES: dict[str, Service] = {}


async def _work(ctx: ModuleContext, given: Given) -> Done:
    service = SERVICES[given.case]
    call = Call(ctx.step, given, ctx.idempotency_key, ctx.run_id, ctx.attempt, ctx.max_attempts)
    service.note(call)
    await service.is_open.wait()
    if ctx.step in service.broken:
        raise Terminal(service.error)
    if ctx.step in service.flaky:
        raise Transient(service.error)
    return Done(step=ctx.step, n=given.n + 1)


def register(registry: Registry) -> None:
    """Add the pipelines `three` (quick steps), `slow` (a minute between tries) and `brief` (a fast step)."""

    @registry.module("first", policy=QUICK)
    async def first(ctx: ModuleContext, given: Given) -> Done:
        return await _work(ctx, given)

    @registry.module("second", policy=QUICK)
    async def second(ctx: ModuleContext, given: Given) -> Done:
        return await _work(ctx, given)

    @registry.module("third", policy=QUICK)
    async def third(ctx: ModuleContext, given: ThirdGiven) -> Done:
        return await _work(ctx, given)

    @registry.module("patient", policy=SLOW)
    async def patient(ctx: ModuleContext, given: Given) -> Done:
        return await _work(ctx, given)

    @registry.module("brief", policy=QUICK, timeout=timedelta(seconds=2), fast=True)
    async def brief(ctx: ModuleContext, given: Given) -> Done:
        return await _work(ctx, given)

    Pipeline("three", first, second, third, registry=registry)
    Pipeline("brief", brief, registry=registry)
    Pipeline("slow", patient, registry=registry)


@dataclass
class Case:
    """One run and its dead letters, for one tenant."""

    redrive: Redrive
    temporal: Client
    database_url: str
    task_queue: str
    service: Service = field(default_factory=Service)
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    run_id: str = ""
    # Longer than Temporal takes to repeat a workflow task that was lost on its way, twice.
    patience: float = 45.0

    def __post_init__(self) -> None:
        SERVICES[self.name] = self.service
        self.tenant = f"tenant-{self.name}"

    @property
    def run(self) -> WorkflowHandle[Any, Any]:
        """The run's workflow."""
        return self.temporal.get_workflow_handle(self.run_id)

    def letter(self, step: str) -> LetterId:
        """The id of a step's dead letter."""
        return LetterId(tenant=self.tenant, run_id=self.run_id, step=step)

    @property
    def queue(self) -> WorkflowHandle[Any, Any]:
        """The dead letter queue that the run reports to."""
        return self.temporal.get_workflow_handle(queue_id(self.tenant, self.task_queue, self.temporal.identity))

    def addressed(self, step: str = "second", **fields: Any) -> dict[str, Any]:
        """Return a command as the queue takes it."""
        return wording(run_id=self.run_id, step=step, **fields)

    async def start(self, *, pipeline: str = "three", key: str | None = None, **payload: Any) -> None:
        """Start the run."""
        document = {"case": self.name, "n": 1} | payload
        started = await self.redrive.start(pipeline, document, tenant=self.tenant, key=key)
        self.run_id = started.run_id

    async def park(self, *broken: str, key: str | None = None, **payload: Any) -> "Case":
        """Start a run whose given steps are broken, and wait until it is parked with its record written."""
        self.service.broken |= set(broken)
        await self.start(key=key, **payload)
        first = next(step for step in STEPS if step in broken)
        await self.until_letter(first, LetterStatus.PENDING)
        return self

    def mend(self, *steps: str) -> None:
        """Let steps work again; all when none is named."""
        self.service.broken -= set(steps or self.service.broken)

    async def command(self, verb: Verb, step: str = "second", **fields: Any) -> Answer:
        """Give a command to a dead letter, as operators do."""
        command: Any = COMMANDS.validate_python(wording(verb=verb, **fields))
        return await self.redrive.dead_letters.send(self.letter(step), command)

    async def view(self) -> RunView:
        """Return the run as an operator sees it."""
        return await self.redrive.status(self.run_id)

    async def until(self, status: RunStatus) -> RunView:
        """Wait until the run has a status."""

        async def has() -> RunView | None:
            view = await self.view()
            return view if view.status is status else None

        return await eventually(has, within=self.patience)

    async def until_letter(self, step: str, status: LetterStatus, *, cycle: int = 1) -> dict[str, Any]:
        """Wait until the record of a step has a status and at least so many cycles."""

        async def has() -> dict[str, Any] | None:
            record = await self.record(step)
            return record if record and record["status"] == status and record["cycle"] >= cycle else None

        return await eventually(has, within=self.patience)

    async def record(self, step: str = "second") -> dict[str, Any] | None:
        """Return the record of a step's dead letter."""
        rows = await self.rows("SELECT * FROM redrive.dead_letters WHERE id = $1", self.letter(step).workflow_id)
        return rows[0] if rows else None

    async def until_row(self, status: RunStatus) -> dict[str, Any]:
        """Wait until the run's row has a status."""

        async def has() -> dict[str, Any] | None:
            rows = await self.rows("SELECT * FROM redrive.runs WHERE run_id = $1", self.run_id)
            return rows[0] if rows and rows[0]["status"] == status else None

        return await eventually(has, within=self.patience)

    async def audit(self, step: str | None = None) -> list[dict[str, Any]]:
        """Return the audit log of a step's dead letter, or of all of the tenant's."""
        return await self.rows(
            "SELECT * FROM redrive.audit_log WHERE tenant = $1 AND ($2::text IS NULL OR step = $2) ORDER BY number",
            self.tenant,
            step,
        )

    async def audited(self, request_id: str, *, action: str) -> dict[str, Any]:
        """Wait for the audit row of a command."""

        async def found() -> dict[str, Any] | None:
            rows = [row for row in await self.audit() if row["request_id"] == request_id and row["action"] == action]
            return rows[0] if rows else None

        return await eventually(found, within=self.patience)

    async def refusals(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many commands were refused, and return their audit rows."""

        async def found() -> list[dict[str, Any]] | None:
            rows = [row for row in await self.audit() if row["action"] == "refused"]
            return rows if len(rows) >= count else None

        return await eventually(found, within=self.patience)

    async def works_still(self, step: str = "second") -> None:
        """Mend everything, replay the parked step, and see the run end: nothing is stuck."""
        self.mend()
        answer = await self._until_answered(Verb.REPLAY, step)
        assert answer.accepted, answer
        async with asyncio.timeout(self.patience):
            result = await self.redrive.result(self.run_id)
        assert result.status is RunStatus.SUCCESS

    async def _until_answered(self, verb: Verb, step: str) -> Answer:
        """Give a command, again with the same request id if the dead letter is too busy to answer in time."""
        request_id = str(uuid.uuid4())

        async def answer() -> Answer | None:
            try:
                return await self.command(verb, step, request_id=request_id)
            except Unavailable:
                return None

        return await eventually(answer, within=self.patience)

    async def rows(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        """Ask the database."""
        rows = await fetch(self.database_url, query, *arguments)
        return [{name: _parsed(name, value) for name, value in row.items()} for row in rows]


def _parsed(name: str, value: object) -> object:
    documents = {"failure_history", "attempts", "payload", "config", "before", "after"}
    return json.loads(value) if name in documents and isinstance(value, str) else value


def wording(**fields: Any) -> dict[str, Any]:
    """Return the fields that every command has, and those given."""
    return {"request_id": uuid.uuid4().hex, "requested_by": "ada", "reason": "it is mended"} | fields


async def stuck(handle: WorkflowHandle[Any, Any]) -> bool:
    """Tell whether a workflow fails its workflow task over and over."""
    description = (await handle.describe()).raw_description
    return description.pending_workflow_task.attempt > 1
