"""Many runs of one tenant that die as a test says, and the bulk operations about their dead letters."""

import asyncio
import json
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio.client import Client

from redrive import STEP, ModuleContext, NoJitter, Pipeline, Redrive, Registry, Terminal
from redrive.bulk import BulkAnswer, BulkCommand, BulkItem, BulkStatus, BulkView, ItemStatus
from redrive.dead_letters import LetterId, LetterSelection, Verb
from tests.conftest import eventually
from tests.database import fetch

QUICK = STEP.model_copy(update={"base": timedelta(milliseconds=20), "jitter": NoJitter(), "max_attempts": 2})
WHO: dict[str, Any] = {"requested_by": "ada", "reason": "the provider is back"}


class Given(BaseModel):
    """What each step reads."""

    case: str
    number: int


class Wire(Given):
    """What a transfer reads, too."""

    iban: str = "none"


class Done(BaseModel):
    """What each step returns."""

    number: int


@dataclass
class Service:
    """The outside world of one case: which numbers are refused, who has to wait, and who called."""

    refused: set[int] = field(default_factory=set)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open.set()


SERVICES: dict[str, Service] = {}


async def _work(ctx: ModuleContext, given: Given) -> Done:
    service = SERVICES[given.case]
    await service.open.wait()
    if given.number in service.refused:
        raise Terminal("the provider is down")
    service.calls[ctx.step, given.number] += 1
    return Done(number=given.number)


def register(registry: Registry) -> None:
    """Add the pipelines `commands` (charge, ship) and `wires` (transfer, whose effect no key guards)."""

    @registry.module("charge", policy=QUICK)
    async def charge(ctx: ModuleContext, given: Given) -> Done:
        return await _work(ctx, given)

    @registry.module("ship", policy=QUICK, effect="none")
    async def ship(ctx: ModuleContext, given: Given) -> Done:
        return Done(number=given.number)

    @registry.module("transfer", policy=QUICK, effect="unsafe")
    async def transfer(ctx: ModuleContext, given: Wire) -> Done:
        return await _work(ctx, given)

    Pipeline("orders", charge, ship, registry=registry)
    Pipeline("wires", transfer, registry=registry)


@dataclass
class Case:
    """One tenant with dead letters, and the operator who deals with them together."""

    redrive: Redrive
    temporal: Client
    database_url: str
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    service: Service = field(default_factory=Service)
    runs: dict[int, LetterId] = field(default_factory=dict)

    def __post_init__(self) -> None:
        SERVICES[self.name] = self.service
        self.tenant = f"tenant-{self.name}"

    async def park(self, *numbers: int, pipeline: str = "orders", step: str = "charge") -> "Case":
        """Let runs die, and wait for their records."""
        self.service.refused |= set(numbers)
        for number in numbers:
            run = await self.redrive.start(pipeline, {"case": self.name, "number": number}, tenant=self.tenant)
            self.runs[number] = LetterId(tenant=self.tenant, run_id=run.run_id, step=step)

        async def all_there() -> bool:
            rows = await self.rows("SELECT id FROM redrive.dead_letters WHERE tenant = $1", self.tenant)
            return len(rows) == len(self.runs)

        await eventually(all_there)
        return self

    def mend(self) -> None:
        """Let everything work."""
        self.service.refused.clear()

    def command(
        self, verb: Any = Verb.REPLAY, *, selection: LetterSelection | None = None, **options: Any
    ) -> BulkCommand:
        """Return a command about this tenant."""
        return BulkCommand(tenant=self.tenant, verb=verb, selection=selection or LetterSelection(), **options)

    async def start(self, command: BulkCommand | None = None, **fields: Any) -> BulkAnswer:
        """Plan it and start it."""
        plan = await self.redrive.bulk.plan(command or self.command())
        return await self.redrive.bulk.start(plan, **WHO | fields)

    async def view(self, bulk: BulkAnswer) -> BulkView:
        """Return how far it is; the counts add up, whenever one looks."""
        view = await self.redrive.bulk.get(bulk.bulk_id, tenant=self.tenant)
        now = view.progress
        assert now.pending + now.sending + now.accepted + now.applied + now.skipped + now.failed == now.total
        return view

    async def until(self, bulk: BulkAnswer, status: BulkStatus) -> BulkView:
        """Wait until it has a status."""

        async def has() -> BulkView | None:
            view = await self.view(bulk)
            return view if view.status is status else None

        return await eventually(has, within=60)

    async def items(self, bulk: BulkAnswer) -> list[BulkItem]:
        """Return all items."""
        return (await self.redrive.bulk.items(bulk.bulk_id, tenant=self.tenant)).items

    async def became(self, bulk: BulkAnswer) -> dict[int, ItemStatus]:
        """Return the status of each number's item."""
        numbers = {letter.workflow_id: number for number, letter in self.runs.items()}
        return {numbers[item.letter_id]: item.status for item in await self.items(bulk)}

    async def audit(self) -> list[dict[str, Any]]:
        """Return the tenant's audit log."""
        return await self.rows("SELECT * FROM redrive.audit_log WHERE tenant = $1 ORDER BY number", self.tenant)

    async def rows(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        """Ask the database, as its owner."""
        rows = await fetch(self.database_url, query, *arguments)
        return [
            {name: json.loads(value) if name == "after" and value else value for name, value in row.items()}
            for row in rows
        ]
