"""The ways to park a run and to take it on: dead letters, a hand-written workflow, and the floor."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil
from temporalio.client import Client

from redrive import Redrive
from redrive.bulk import BulkCommand
from redrive.dead_letters import LetterId, Replay, Verb
from tests.acceptance.live import insist
from tests.bench.contenders import PLAIN, REDRIVE
from tests.bench.letter_plain import HandWrittenRun, ParkingRun
from tests.bench.letter_steps import PARKED_FILE, PIPELINE, STEP, Done, Errand

if TYPE_CHECKING:
    import asyncpg

UNANSWERED, BULK = "redrive unanswered", "redrive bulk"
HAND_WRITTEN, SIGNAL_ONLY = "hand-written", "signal only"
OURS = {REDRIVE, UNANSWERED, BULK}
PARALLELISM = 200
WHO: dict[str, Any] = {"requested_by": "bench", "reason": "it is fixed"}


class Parking(Protocol):
    """One way. A round has a folder, whose name is also its tenant."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def worker(self) -> psutil.Process:
        """Its worker."""

    async def start(self, errand: Errand) -> str:
        """Start a run and return its id."""

    async def parked(self, folder: Path) -> int:
        """Count the runs of a round that are parked, with all that belongs to it."""

    async def command(self, folder: Path, run_id: str) -> None:
        """Tell one to go on."""

    async def ended(self, run_id: str) -> None:
        """Wait until one has ended."""

    async def settled(self, folder: Path) -> int:
        """Count the runs of a round whose replay is written down as ended."""


@dataclass(frozen=True)
class WithDeadLetters:
    """Redrive, through its client; a run is parked when its record is in Postgres."""

    redrive: Redrive
    records: "asyncpg.Connection[asyncpg.Record]"
    worker: psutil.Process
    name: str = REDRIVE

    async def start(self, errand: Errand) -> str:
        """Start a run and return its id."""
        return (await self.redrive.start(PIPELINE, errand, tenant=errand.folder.name)).run_id

    async def parked(self, folder: Path) -> int:
        """Count the records."""
        count: int = await self.records.fetchval(
            "SELECT count(*) FROM redrive.dead_letters WHERE tenant = $1", folder.name
        )
        return count

    async def command(self, folder: Path, run_id: str) -> None:
        """Replay, and wait for the answer; ask again when there is none, as the client says."""
        letter = LetterId(tenant=folder.name, run_id=run_id, step=STEP)
        answer = await insist(lambda: self.redrive.dead_letters.replay(letter, request_id=run_id, **WHO))
        if not answer.accepted:
            raise RuntimeError(answer.message)

    async def ended(self, run_id: str) -> None:
        """Wait until a run has ended."""
        await self.redrive.result(run_id)

    async def settled(self, folder: Path) -> int:
        """Count the records that are closed."""
        count: int = await self.records.fetchval(
            "SELECT count(*) FROM redrive.dead_letters WHERE tenant = $1 AND status = 'replayed'", folder.name
        )
        return count


@dataclass(frozen=True)
class Unanswered(WithDeadLetters):
    """Redrive, with commands that are signalled, as the hand-written run's are: nobody is told whether one is taken."""

    name: str = UNANSWERED

    async def command(self, folder: Path, run_id: str) -> None:
        """Replay, and wait for no answer."""
        letter = LetterId(tenant=folder.name, run_id=run_id, step=STEP)
        if not await self.redrive.dead_letters.tell(letter, Replay(request_id=run_id, **WHO)):
            raise RuntimeError(f"run {run_id} is gone")


@dataclass(frozen=True)
class InBulk(WithDeadLetters):
    """Redrive, with one bulk operation for all dead letters of a round."""

    name: str = BULK

    async def replay_all(self, folder: Path) -> None:
        """Plan and start it."""
        command = BulkCommand(tenant=folder.name, verb=Verb.REPLAY, parallelism=PARALLELISM)
        plan = await self.redrive.bulk.plan(command)
        await self.redrive.bulk.start(plan, **WHO)


@dataclass(frozen=True)
class HandWritten:
    """What one would write: a run is parked when its record is in PostgreSQL."""

    client: Client
    records: "asyncpg.Connection[asyncpg.Record]"
    worker: psutil.Process
    name: str = HAND_WRITTEN

    async def start(self, errand: Errand) -> str:
        """Start a run and return its id."""
        return await _started(self.client, HandWrittenRun.run, errand)

    async def parked(self, folder: Path) -> int:
        """Count the records."""
        return await self._count(folder, "pending")

    async def command(self, folder: Path, run_id: str) -> None:
        """Send the signal."""
        await self.client.get_workflow_handle(run_id).signal(HandWrittenRun.replay)

    async def ended(self, run_id: str) -> None:
        """Wait until a run has ended."""
        await self.client.get_workflow_handle(run_id).result()

    async def settled(self, folder: Path) -> int:
        """Count the records that are closed."""
        return await self._count(folder, "replayed")

    async def _count(self, folder: Path, status: str) -> int:
        counted: int = await self.records.fetchval(
            "SELECT count(*) FROM bench_letters WHERE round = $1 AND status = $2", folder.name, status
        )
        return counted


@dataclass(frozen=True)
class SignalOnly:
    """The floor."""

    client: Client
    worker: psutil.Process
    name: str = SIGNAL_ONLY

    async def start(self, errand: Errand) -> str:
        """Start a run and return its id."""
        return await _started(self.client, ParkingRun.run, errand)

    async def parked(self, folder: Path) -> int:
        """Count what the workflows have noted."""
        file = folder / PARKED_FILE
        return file.read_bytes().count(b"\n") if file.exists() else 0

    async def command(self, folder: Path, run_id: str) -> None:
        """Send the signal."""
        await self.client.get_workflow_handle(run_id).signal(ParkingRun.replay)

    async def ended(self, run_id: str) -> None:
        """Wait until a run has ended."""
        await self.client.get_workflow_handle(run_id).result()

    async def settled(self, folder: Path) -> int:
        """Nothing is written down: what has ended is settled."""
        return await self.parked(folder)


async def _started(client: Client, run: Callable[[Any, Errand], Awaitable[Done]], errand: Errand) -> str:
    run_id = f"plain-{uuid.uuid4().hex}"
    await client.start_workflow(run, errand, id=run_id, task_queue=PLAIN)
    return run_id
