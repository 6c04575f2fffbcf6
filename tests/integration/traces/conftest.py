"""A worker process that traces, a collector, and the service that its runs call."""

import asyncio
import contextlib
import json
import uuid
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from redrive.starter.stack.state import StackInfo
from tests.conftest import access_url, eventually, owner_url
from tests.integration.cli.command import CommandLine
from tests.integration.traces.collector import Collector, collecting
from tests.unit.redrive.conftest import Server, reply, server

__all__ = ["server"]

TOKEN = "token-that-nobody-may-see"


@dataclass
class Scene:
    """Processes that send their spans to one collector."""

    command: CommandLine
    shop: Server
    collector: Collector
    logs: dict[str, asyncio.Task[tuple[bytes, bytes]]] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    async def start(self, *words: str, **variables: str) -> Process:
        """Start a process of ours, and wait until it says that it is ready."""
        ready = self.command.directory / f"ready-{len(self.processes)}"
        process = await self.command.start(*words, stdin=DEVNULL, REDRIVE_READY_FILE=str(ready), **variables)
        self.processes.append(process)
        self.logs[" ".join(words)] = asyncio.create_task(process.communicate())
        if words[0] != "console":

            async def is_ready() -> bool:
                assert process.returncode is None, "it has ended already"
                return ready.exists()

            await eventually(is_ready, within=90)
        return process

    async def stop(self, process: Process) -> int:
        """Stop a process, and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        return await process.wait()

    async def log(self, *words: str) -> list[dict[str, Any]]:
        """Return the log of a process that has ended."""
        _, text = await self.logs[" ".join(words)]
        return [json.loads(line) for line in text.splitlines()]

    async def run(self, *, code: int = 0, **payload: str) -> Any:
        """Start a run by hand, and wait for its end, or until it is parked."""
        given = ("--payload", json.dumps(payload), "--label", "mission_id=42")
        said = await self.command("run", "start", "traced", *given, "--wait", "--json")
        assert said.code == code, said.err
        return said.document


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    """A collector."""
    async with collecting() as running:
        yield running


@pytest.fixture
async def scene(stack: StackInfo, tmp_path: Path, server: Server, collector: Collector) -> AsyncIterator[Scene]:
    """Processes of ours on a queue of their own; the service fails once and then answers."""
    server.on("/charges", reply(503, {"problem": f"{TOKEN} is at its limit"}), reply(201, {}))
    command = CommandLine(
        tmp_path,
        TEMPORAL_ADDRESS=stack.temporal_address,
        DATABASE_URL=stack.database_url.get_secret_value(),
        REDRIVE_ACCESS_DATABASE_URL=access_url(stack),
        REDRIVE_OWNER_DATABASE_URL=owner_url(stack),
        REDRIVE_TASK_QUEUE=f"queue-{uuid.uuid4().hex[:12]}",
        REDRIVE_MODULES="tests.integration.traces.modules",
        REDRIVE_SERVICES=json.dumps({"shop": {"base_url": server.url, "token": TOKEN}}),
        REDRIVE_LOG_FORMAT="json",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.server.url,
        OTEL_BSP_SCHEDULE_DELAY="100",
    )
    made = Scene(command, server, collector)
    try:
        yield made
    finally:
        for process in made.processes:
            await made.stop(process)
        await asyncio.gather(*made.logs.values())
