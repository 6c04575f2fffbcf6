"""A project's worker with the plugin, next to Redrive's own worker, and what became of its dead letters."""

import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Replayer, Worker

from redrive import Redrive
from redrive.dead_letters import COMMANDS, Answer, LetterId, LetterStatus
from redrive.plugin import DeadLetters
from tests.conftest import eventually
from tests.database import fetch
from tests.integration.plugin import project


@dataclass
class Project:
    """One project: its client with the plugin, its queue, its outside world."""

    client: Client
    redrive: Redrive
    database_url: str
    plugin: DeadLetters
    queue: str = field(default_factory=lambda: f"users-{uuid.uuid4().hex[:12]}")
    case: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    outside: project.Outside = field(default_factory=project.Outside)

    def __post_init__(self) -> None:
        project.CASES[self.case] = self.outside

    def order(self, amount: int = 1) -> project.Order:
        """Return an order of this case."""
        return project.Order(self.case, "o-1", amount)

    def broken(self, *names: str) -> None:
        """Let exactly these activities fail."""
        self.outside.broken = set(names)

    async def start(self, run: Any, *arguments: Any, **options: Any) -> WorkflowHandle[Any, Any]:
        """Start a workflow."""
        options = {"id": f"order {uuid.uuid4().hex[:12]}", "task_queue": self.queue} | options
        handle: WorkflowHandle[Any, Any] = await self.client.start_workflow(run, args=arguments, **options)
        return handle

    async def letters(self, handle: WorkflowHandle[Any, Any]) -> list[dict[str, Any]]:
        """Return the records of a workflow's dead letters, the oldest first."""
        query = "SELECT * FROM redrive.dead_letters WHERE run_id = $1 ORDER BY created_at, id"
        return [_read(row) for row in await fetch(self.database_url, query, handle.id)]

    async def parked(
        self,
        handle: WorkflowHandle[Any, Any],
        count: int = 1,
        *,
        cycle: int = 1,
        module: str | None = None,
        within: float = 30,
    ) -> list[dict[str, Any]]:
        """Wait until so many dead letters of a workflow wait for a command, and return them."""

        async def found() -> list[dict[str, Any]] | None:
            rows = [row for row in await self.letters(handle) if module in {None, row["module"]}]
            waiting = [row for row in rows if row["status"] == LetterStatus.PENDING and row["cycle"] == cycle]
            return waiting if len(waiting) == count else None

        return await eventually(found, within=within)

    async def closed(self, handle: WorkflowHandle[Any, Any], status: LetterStatus, count: int = 1) -> None:
        """Wait until so many dead letters of a workflow are closed in this way, and no others are there."""

        async def are() -> bool:
            return [row["status"] for row in await self.letters(handle)] == [status] * count

        await eventually(are, within=60)

    async def command(self, letter: dict[str, Any], verb: str, **fields: Any) -> Answer:
        """Give a command, as operators do."""
        given = {"verb": verb, "request_id": uuid.uuid4().hex, "requested_by": "ada", "reason": "fixed"} | fields
        command: Any = COMMANDS.validate_python(given)
        return await self.redrive.dead_letters.send(id_of(letter), command)

    async def replays(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Rebuild a workflow from its history."""
        replayer = Replayer(
            workflows=project.WORKFLOWS, plugins=[self.plugin], data_converter=self.client.data_converter
        )
        await replayer.replay_workflow(await handle.fetch_history())

    def worker(self, **options: Any) -> Worker:
        """Return the project's worker, as any project writes it."""
        # Without a build id the SDK reads all code that is loaded, which takes seconds.
        usual = {"workflows": project.WORKFLOWS, "activities": project.ACTIVITIES, "build_id": "tests"}
        given: dict[str, Any] = usual | options
        return Worker(
            self.client,
            task_queue=self.queue,
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
            **given,
        )


def id_of(letter: dict[str, Any]) -> LetterId:
    """Return the id of a record's dead letter."""
    return LetterId(tenant=letter["tenant"], run_id=letter["run_id"], step=letter["step"])


@contextlib.asynccontextmanager
async def running(made: Project, **options: Any) -> AsyncIterator[Project]:
    """Run a project's worker."""
    async with made.worker(**options):
        yield made


def _read(row: dict[str, Any]) -> dict[str, Any]:
    documents = {"failure_history", "attempts", "payload", "config"}
    return {name: json.loads(value) if name in documents else value for name, value in row.items()}
