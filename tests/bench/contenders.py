"""The contenders: each has a process of its own, on the same servers, and makes a round of runs when it is told to."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import psutil
from temporalio.client import Client

from redrive import Pipeline, Redrive
from redrive.connection import connect_temporal
from redrive.settings import Settings
from redrive.starter.stack.children import Program, Supervisor
from redrive.starter.stack.programs import WORKER, worker_environment, worker_program
from redrive.starter.stack.stack import Stack
from redrive.starter.stack.state import StackInfo
from tests.bench.letter_steps import URL as LETTERS_URL
from tests.bench.measure import Cpu, Round, cpu_of, time_calls, used
from tests.bench.models import DBOS_URL, ORDER
from tests.bench.modules import FAST_PIPELINES, PIPELINES
from tests.bench.plain import PlainRun
from tests.conftest import owner_url

REDRIVE, FAST, OWN, PLAIN, DBOS = "redrive", "redrive fast", "redrive own worker", "plain", "dbos"
_LINE_LIMIT = 2**20


class Contender(Protocol):
    """One way to do the work."""

    @property
    def name(self) -> str:
        """What it is called."""

    async def round(self, *, steps: int, at_once: int, runs: int) -> Round:
        """Make runs of so many steps, so many at once, each until its result; and measure."""


@dataclass(frozen=True)
class Stage:
    """A stack with a worker for each contender that uses Temporal, by name."""

    client: Client
    redrive: Redrive
    info: StackInfo
    folder: Path
    environment: Mapping[str, str]
    workers: Mapping[str, psutil.Process]

    def cpu(self, contender: str) -> Cpu:
        """Return what a contender's worker, this process and the servers have used so far."""
        return {
            "worker": cpu_of(self.workers[contender]),
            "caller": sum(psutil.Process().cpu_times()[:2]),
            "temporal": self.temporal_cpu(),
            "postgres": self.postgres_cpu(),
        }

    def temporal_cpu(self) -> float:
        """Return what Temporal has used so far."""
        return cpu_of(psutil.Process(self.info.children["temporal"]))

    def postgres_cpu(self) -> float:
        """Return what PostgreSQL has used so far."""
        return cpu_of(psutil.Process(self.info.children["postgres"]))


@dataclass(frozen=True)
class OnTemporal:
    """A contender whose runs are started from this process: `run(steps)` waits for the result."""

    name: str
    worker: str
    on: Stage
    run: Callable[[int], Awaitable[object]]

    async def round(self, *, steps: int, at_once: int, runs: int) -> Round:
        """Make the runs and measure."""
        before = self.on.cpu(self.worker)
        wall, latencies = await time_calls(partial(self.run, steps), at_once=at_once, count=runs)
        return Round(wall, latencies, used(before, self.on.cpu(self.worker)))


@dataclass(frozen=True)
class InOneProcess:
    """A contender whose process both starts the runs and works on them."""

    name: str
    on: Stage
    process: Process

    async def round(self, *, steps: int, at_once: int, runs: int) -> Round:
        """Have the process make the runs."""
        before = self._cpu()
        wall, latencies = json.loads(await _asked(self.process, f"{steps} {at_once} {runs}"))
        return Round(wall, latencies, used(before, self._cpu()))

    def _cpu(self) -> Cpu:
        servers = {"temporal": self.on.temporal_cpu(), "postgres": self.on.postgres_cpu()}
        return {"worker": cpu_of(psutil.Process(self.process.pid))} | servers


@contextlib.asynccontextmanager
async def contenders(plain_runner: str) -> AsyncIterator[list[Contender]]:
    """Bring up those that make runs which succeed."""
    async with (
        stage("tests.bench.modules", plain_runner=plain_runner) as on,
        _program(on, "tests.bench.own_steps", REDRIVE_TASK_QUEUE=OWN) as own,
        # A database of its own, which it makes.
        _program(on, "tests.bench.dbos_steps", **{DBOS_URL: owner_url(on.info).rpartition("/")[0] + "/dbos"}) as dbos,
    ):
        yield [
            OnTemporal(REDRIVE, REDRIVE, on, partial(_run_redrive, on.redrive, PIPELINES)),
            OnTemporal(FAST, REDRIVE, on, partial(_run_redrive, on.redrive, FAST_PIPELINES)),
            InOneProcess(OWN, on, own),
            OnTemporal(PLAIN, PLAIN, on, partial(_run_plain, on.client)),
            InOneProcess(DBOS, on, dbos),
        ]


@contextlib.asynccontextmanager
async def stage(*modules: str, plain_runner: str = "sandbox") -> AsyncIterator[Stage]:
    """Bring up a stack with a worker for each contender; everything is stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as directory:
        state = Path(directory)
        async with Stack(Settings(), state_dir=state, modules=modules, workers=0) as stack:
            environment = with_bytecode(worker_environment(stack.info, state_dir=state, embedded_temporal=True), state)
            address = stack.info.temporal_address
            workers = Supervisor(state / "logs")
            try:
                await workers.start(
                    worker_program(REDRIVE, WORKER, environment, state / REDRIVE),
                    _plain_program(stack.info, environment, state / PLAIN, plain_runner),
                )
                client = await connect_temporal(Settings(temporal_address=address))
                yield Stage(
                    client=client,
                    redrive=Redrive(client, task_queue=stack.info.task_queue),
                    info=stack.info,
                    folder=state,
                    environment=environment,
                    workers={name: psutil.Process(status.pid) for name, status in workers.statuses.items()},
                )
            finally:
                await workers.stop()


def with_bytecode(environment: Mapping[str, str], state: Path) -> dict[str, str]:
    """Let the workers keep compiled code, as installed ones do: the sandbox loads the workflow's file for each run.

    They share what is there already: to compile all libraries again takes longer than most tests.
    """
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"PYTHONPYCACHEPREFIX": str(state / "bytecode")} | kept


def _plain_program(info: StackInfo, environment: Mapping[str, str], ready_file: Path, runner: str) -> Program:
    words = (info.temporal_address, PLAIN, str(ready_file), runner)
    return Program(
        name=PLAIN,
        title="the plain worker",
        command=[sys.executable, "-m", "tests.bench.plain_worker", *words],
        environment={**environment, LETTERS_URL: owner_url(info)},
        directory=Path.cwd(),
        ready=partial(asyncio.to_thread, ready_file.exists),
    )


@contextlib.asynccontextmanager
async def _program(on: Stage, module: str, **environment: str) -> AsyncIterator[Process]:
    """Start a program that makes rounds when it is told to, on the same servers."""
    with (on.folder / "logs" / f"{module}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            limit=_LINE_LIMIT,
            env={**os.environ, **on.environment, **environment},
        )
    try:
        await _line(process)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _asked(process: Process, line: str) -> bytes:
    assert process.stdin
    process.stdin.write(f"{line}\n".encode())
    await process.stdin.drain()
    return await _line(process)


async def _line(process: Process) -> bytes:
    assert process.stdout
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"a contender has ended with code {await process.wait()}")
    return line


async def _run_redrive(redrive: Redrive, pipelines: Mapping[int, Pipeline], steps: int) -> object:
    started = await redrive.start(pipelines[steps], ORDER)
    return await redrive.result(started.run_id)


async def _run_plain(client: Client, steps: int) -> object:
    return await client.execute_workflow(
        PlainRun.run, args=[ORDER, steps], id=f"plain-{uuid.uuid4().hex}", task_queue=PLAIN
    )
