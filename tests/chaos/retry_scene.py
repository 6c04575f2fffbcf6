"""The stage for the retry scheduler: bridges that may be killed, and who of them sweeps."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

from tests.chaos.trouble import Workers

SERVICE = "retry-chaos"
POLL = 0.1


def bridge_environment(
    environment: Mapping[str, str], *, url: str, retry_queue: str, review_queue: str
) -> dict[str, str]:
    """Return the environment of bridges with short delays."""
    return dict(environment) | {
        "SERVICE_NAME": SERVICE,
        "HTTP_PORT": "0",
        "RABBITMQ_URL": url,
        "RETRY_QUEUE": retry_queue,
        "MANUAL_REVIEW_QUEUE": review_queue,
        "BASE_DELAY_MS": "200",
        "MAX_DELAY_MS": "1000",
    }


@contextlib.asynccontextmanager
async def bridges(
    count: int, environment: Mapping[str, str], tenant: str, folder: Path, client: Client
) -> AsyncIterator["Bridges"]:
    """Run bridges while the block lasts; it begins when all are well."""
    command = [sys.executable, "-m", "redrive.starter.cli.main", "bridge", "rabbitmq", "--tenant", tenant]
    async with Workers(count, environment, folder, command).running() as running:
        yield Bridges(running, client, f"{SERVICE}-{tenant}")


class Bridges:
    """Bridge processes, one of which sweeps."""

    def __init__(self, processes: Workers, client: Client, sweep: str) -> None:
        self._processes = processes
        self._handle = client.get_workflow_handle(sweep)
        self.killed = 0

    async def kill_sweeping(self) -> None:
        """Kill the process that sweeps, as soon as one does."""
        sweeping = None
        while sweeping is None:
            sweeping = await self._sweeping()
            await asyncio.sleep(POLL)
        self._kill(sweeping)

    async def kill_other(self) -> None:
        """Kill a process that only takes messages in."""
        sweeping = await self._sweeping()
        others = [name for name in self._processes.ready if name != sweeping]
        if others:
            self._kill(others[0])

    def _kill(self, name: str) -> None:
        self._processes.kill(name)
        self.killed += 1

    async def _sweeping(self) -> str | None:
        """Ask Temporal who has the activity."""
        try:
            description = await self._handle.describe()
        except RPCError:
            return None
        for pending in description.raw_description.pending_activities:
            for name in self._processes.ready:
                if pending.last_worker_identity.startswith(f"{self._processes.pid(name)}@"):
                    return name
        return None
