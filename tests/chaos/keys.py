"""A thousand starts with one key while servers stop: `python -m tests.chaos.keys`.

Three bursts, each from several processes, two of which are killed: on a quiet stack, with PostgreSQL stopped in the
middle, and with Temporal killed in the middle. Ends with 0 when each was one run, else with 1 and what is wrong.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from redrive import Redrive
from redrive.connection import connect_temporal
from redrive.contracts import KeyStatus
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.keys import run_id_for_key
from redrive.logs import configure_logging
from redrive.postgres.database import Database
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from redrive.store.keys import get_key
from redrive.worker import running_worker
from tests.chaos.key_burst import Burst
from tests.chaos.key_caller import CallerConfig, keyed_registry
from tests.integration.dead_letters.processes import stopped

TROUBLES = ("none", "postgres", "temporal")
PATIENCE = 60.0


@dataclass(frozen=True)
class Scene:
    """A stack of its own, with a worker in this process that counts the calls of the step."""

    stack: Stack
    calls: list[str]
    gate: asyncio.Event

    @contextlib.asynccontextmanager
    async def caller(self) -> AsyncIterator[Redrive]:
        """A caller in this process."""
        info = self.stack.info
        client = await connect_temporal(Settings(temporal_address=info.temporal_address))
        claims = PostgresClaims(info.database_url.get_secret_value())
        async with Redrive(client, task_queue=info.task_queue, registry=keyed_registry(), claims=claims) as redrive:
            yield redrive

    async def burst(self, trouble: str, *, starts: int, callers: int, at_once: int) -> tuple[Burst, list[str]]:
        """Have callers start with one key while the trouble goes on, and say what is wrong afterwards."""
        info = self.stack.info
        key, tenant = uuid.uuid4().hex, f"burst-{trouble}"
        config = CallerConfig(
            temporal_address=info.temporal_address,
            database_url=info.database_url.get_secret_value(),
            task_queue=info.task_queue,
            tenant=tenant,
            key=key,
            starts=starts // callers,
            at_once=at_once,
        )
        self.calls.clear()
        self.gate.clear()
        burst = Burst.of(config, callers=callers, killed=2)
        run_id = run_id_for_key(tenant, key)
        async with burst.running():
            await burst.until_ready()
            await burst.until_heard(starts // 10)
            await self._make(trouble, burst, starts)
        # All callers may be answered before the step is called: after a kill Temporal hands it out again, later.
        row_problems = await self._row_problems(tenant, key)
        return burst, burst.violations(run_id, set(self.calls)) + row_problems

    async def _make(self, trouble: str, burst: Burst, starts: int) -> None:
        """Make trouble while the run is open, and let it end in the middle of that."""
        children = self.stack.info.children
        if trouble == "postgres":
            with stopped(children["postgres"]):
                await burst.until_heard(burst.heard + starts // 5)
                self.gate.set()
                await burst.until_heard(burst.heard + starts // 20)
        elif trouble == "temporal":
            psutil.Process(children["temporal"]).kill()
            await burst.until_heard(burst.heard + starts // 5)
        self.gate.set()

    async def _row_problems(self, tenant: str, key: str) -> list[str]:
        """Wait until the row of the key is complete, whoever completes it."""
        async with Database(self.stack.info.database_url.get_secret_value(), max_size=1) as database:
            deadline = asyncio.get_running_loop().time() + PATIENCE
            while asyncio.get_running_loop().time() < deadline:
                record = await get_key(await database.pool(), tenant, key)
                if record and record.status is KeyStatus.COMPLETED:
                    return []
                await asyncio.sleep(0.1)
        return [f"the row of the key is {record.status if record else 'missing'}"]


@contextlib.asynccontextmanager
async def key_scene() -> AsyncIterator[Scene]:
    """Bring everything up; everything is stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="redrive-chaos-", ignore_cleanup_errors=True) as directory:
        # PostgreSQL does not run as root: its account has to get through here.
        state = Path(directory)
        state.chmod(0o711)
        calls: list[str] = []
        gate = asyncio.Event()
        async with Stack(Settings(), state_dir=state, workers=0) as stack:
            settings = Settings(
                temporal_address=stack.info.temporal_address,
                database_url=stack.info.database_url,
                task_queue=stack.info.task_queue,
                state_dir=state,
            )
            async with running_worker(settings, keyed_registry(calls, gate)):
                yield Scene(stack, calls, gate)


async def _all(words: argparse.Namespace) -> list[str]:
    found: list[str] = []
    async with key_scene() as scene:
        for trouble in TROUBLES:
            burst, problems = await scene.burst(
                trouble, starts=words.starts, callers=words.callers, at_once=words.at_once
            )
            print(f"trouble {trouble}: {burst.answered} answers, {burst.fresh} first, {len(burst.errors)} tried again")
            found += [f"{trouble}: {problem}" for problem in problems]
    return found


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.keys", description=__doc__.partition(":")[0])
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=25, help="starts under way in each caller")
    configure_logging("error")
    problems = asyncio.run(_all(parser.parse_args()))
    for problem in problems:
        print(f"  VIOLATION: {problem}")
    print(f"{len(problems)} violations" if problems else "no violation")
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(1 if problems else 0)


if __name__ == "__main__":
    main()
