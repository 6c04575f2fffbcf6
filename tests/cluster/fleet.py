"""Redrive's own processes on a cluster: workers of a build, and a rolling deploy of the next one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from redrive.starter.stack.programs import WORKER, worker_program
from tests.bench.contenders import with_bytecode
from tests.cluster.cluster import Cluster
from tests.cluster.part import Part


@dataclass
class Fleet:
    """Workers by name, all with the same settings but for the build."""

    cluster: Cluster
    settings: Mapping[str, str]
    workers: dict[str, Part] = field(default_factory=dict)

    async def start(self, name: str, build: str = "1", **settings: str) -> None:
        """Start a worker, and return when it takes work."""
        environment = with_bytecode(self.cluster.environment | dict(self.settings), self.cluster.folder)
        program = worker_program(
            name,
            WORKER,
            environment | {"REDRIVE_BUILD_ID": build} | settings,
            self.cluster.folder / f"{name}.ready",
        )
        part = Part(program, self.logs)
        self.workers[name] = part
        await part.start()

    async def stop(self, name: str) -> None:
        """Stop a worker as a deploy does: it finishes its steps first."""
        await self.workers.pop(name).stop()

    async def roll_out(self, build: str) -> None:
        """Replace the workers one after another, each by one of another build."""
        for number, name in enumerate(list(self.workers), 1):
            await self.start(f"build-{build}-{number}", build)
            await self.stop(name)

    @property
    def logs(self) -> Path:
        """Where the workers' logs are."""
        return self.cluster.folder / "logs"


@contextlib.asynccontextmanager
async def running_fleet(cluster: Cluster, count: int, **settings: str) -> AsyncIterator[Fleet]:
    """Run workers while the block lasts."""
    fleet = Fleet(cluster, settings)
    try:
        await asyncio.gather(*(fleet.start(f"build-1-{number + 1}") for number in range(count)))
        yield fleet
    finally:
        await asyncio.gather(*(part.stop() for part in fleet.workers.values()))
