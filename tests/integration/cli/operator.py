"""An operator: a tenant with a run that parks, the command line, and what the records say afterwards."""

import asyncio
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle

from redrive import Redrive, Registry
from redrive.dead_letters import LetterId
from tests.conftest import eventually
from tests.database import fetch
from tests.integration.cli.command import CommandLine, Said

WHY = ("--reason", "a test", "--by", "ada")


@dataclass
class Operator:
    """One tenant, one folder that says what is broken, and the command."""

    command: CommandLine
    temporal: Client
    task_queue: str
    folder: Path
    tenant: str = field(default_factory=lambda: f"tenant-{uuid.uuid4().hex[:12]}")

    @property
    def redrive(self) -> Redrive:
        """A client of the worker."""
        return Redrive(self.temporal, task_queue=self.task_queue, registry=Registry())

    async def park(self, step: str = "pay", error: str = "the card is stolen", **payload: object) -> LetterId:
        """Start a run whose step is broken, and wait for its record."""
        (self.folder / step).write_text(error)
        document = {"folder": str(self.folder)} | payload
        started = await self.redrive.start("trip", document, tenant=self.tenant)
        letter = LetterId(tenant=self.tenant, run_id=started.run_id, step=step)
        await self.until(letter, "pending")
        return letter

    def mend(self) -> None:
        """Let every step work."""
        for step in ("book", "pay", "depart"):
            (self.folder / step).unlink(missing_ok=True)

    @property
    def calls(self) -> list[str]:
        """The steps that were called."""
        return (self.folder / "calls").read_text().split()

    def run(self, letter: LetterId) -> WorkflowHandle[Any, Any]:
        """The workflow of a letter's run."""
        return self.temporal.get_workflow_handle(letter.run_id)

    async def dlq(self, verb: str, letter: LetterId, *words: str, stdin: str = "") -> Said:
        """Give the command `redrive dlq VERB`."""
        return await self.command("dlq", verb, letter.workflow_id, *words, stdin=stdin)

    async def record(self, letter: LetterId) -> dict[str, Any] | None:
        """Return what the record says."""
        rows = await self.sql("SELECT * FROM redrive.dead_letters WHERE id = $1", letter.workflow_id)
        return rows[0] if rows else None

    async def until(self, letter: LetterId, status: str) -> dict[str, Any]:
        """Wait until the record has a status."""

        async def has() -> dict[str, Any] | None:
            record = await self.record(letter)
            return record if record and record["status"] == status else None

        return await eventually(has)

    async def audit(self) -> list[tuple[str, str]]:
        """Return what was done in the tenant, and by whom."""
        rows = await self.sql("SELECT * FROM redrive.audit_log WHERE tenant = $1 ORDER BY number", self.tenant)
        return [(row["action"], row["actor"]) for row in rows]

    async def sql(self, statement: str, *arguments: object) -> list[dict[str, Any]]:
        """Do something as the owner of the database."""
        return await fetch(self.command.variables["REDRIVE_OWNER_DATABASE_URL"], statement, *arguments)


async def settled(process: asyncio.subprocess.Process) -> Said:
    """Return what a command that was started has said at its end."""
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return Said(process.returncode or 0, out.decode(), err.decode())
