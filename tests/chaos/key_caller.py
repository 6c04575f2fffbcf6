"""A process that starts runs with one key, many times at once, and may die at a chosen point of a start.

Prints a line of JSON for each answer. What needs another try is tried again, as a caller does.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import from_json
from temporalio import activity
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter

from redrive import ModuleContext, OutcomeUnknown, Pipeline, Redrive, Registry, Unavailable
from redrive.contracts import ClaimRequest, Workflow
from redrive.idempotency.claims import Claim, Settlement
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.logs import configure_logging
from redrive.published_catalogs import PublishedCatalogs

PIPELINE = "keyed"
STEP = "effect"
RETRY_PAUSE = 0.1

Point = Literal["claimed", "started", "before_release", "before_settle", "settled"]


class CallerConfig(BaseModel):
    """What a caller is told."""

    temporal_address: str
    database_url: str
    task_queue: str
    tenant: str
    key: str
    pipeline: str = PIPELINE
    knows_the_code: bool = True
    starts: int = 1
    at_once: int = 1
    dies_when: Point | None = None


class Given(BaseModel):
    """The payload."""

    n: int = 0


def die() -> None:
    """End as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingClaims(PostgresClaims):
    """Keys in a database, and a process that dies between two lines."""

    def __init__(self, database_url: str, dies_when: Point | None) -> None:
        super().__init__(database_url)
        self._dies_when = dies_when

    async def claim(self, request: ClaimRequest) -> Claim | None:
        """Claim, and die if that is the point."""
        claim = await super().claim(request)
        if self._dies_when == "claimed":
            die()
        return claim

    async def release(self, request: ClaimRequest) -> None:
        """Die instead, if that is the point."""
        if self._dies_when == "before_release":
            die()
        await super().release(request)

    async def settle(self, request: ClaimRequest, settlement: Settlement) -> None:
        """Die before or after, if that is the point."""
        if self._dies_when == "before_settle":
            die()
        await super().settle(request, settlement)
        if self._dies_when == "settled":
            die()


class _DieWhenStarted(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
        handle = await super().start_workflow(input)
        # With a slow database, another workflow is started first, which writes the key's row.
        if input.workflow == Workflow.MODULE_RUN:
            die()
        return handle


class DyingInterceptor(Interceptor):
    """Dies when Temporal has started the run, before the caller hears of it."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        """Put the dying one in between."""
        return _DieWhenStarted(super().intercept_client(next))


def keyed_registry(calls: list[str] | None = None, gate: asyncio.Event | None = None) -> Registry:
    """Return the code of the pipeline; a worker's notes the execution of each call, and may keep it waiting."""
    registry = Registry()

    @registry.module(STEP)
    async def effect(ctx: ModuleContext, given: Given) -> Given:
        if calls is not None:
            calls.append(activity.info().workflow_run_id or "")
        if gate is not None:
            await gate.wait()
        return Given(n=given.n + 1)

    Pipeline(PIPELINE, effect, registry=registry)
    return registry


@contextlib.asynccontextmanager
async def _calling(config: CallerConfig) -> AsyncIterator[Redrive]:
    interceptors = [DyingInterceptor()] if config.dies_when == "started" else []
    client = await Client.connect(
        config.temporal_address, data_converter=pydantic_data_converter, interceptors=interceptors
    )
    registry = keyed_registry() if config.knows_the_code else Registry()
    claims = DyingClaims(config.database_url, config.dies_when)
    catalogs = PublishedCatalogs(claims.pool, client.namespace, config.task_queue)
    async with Redrive(
        client, task_queue=config.task_queue, registry=registry, claims=claims, catalogs=catalogs
    ) as redrive:
        yield redrive


async def _start(redrive: Redrive, config: CallerConfig) -> None:
    while True:
        try:
            answer = await redrive.start(config.pipeline, {"n": 1}, tenant=config.tenant, key=config.key)
        except (OutcomeUnknown, Unavailable) as error:
            print(f'{{"error": "{error.code}"}}', flush=True)
            await asyncio.sleep(RETRY_PAUSE)
        else:
            print(answer.model_dump_json(), flush=True)
            return


async def call(config: CallerConfig) -> None:
    """Make all the starts."""
    left = iter(range(config.starts))

    async def one_after_another(redrive: Redrive) -> None:
        for _ in left:
            await _start(redrive, config)

    async with _calling(config) as redrive:
        print("{}", flush=True)
        await asyncio.gather(*(one_after_another(redrive) for _ in range(config.at_once)))


@dataclass
class Caller:
    """A caller as a child process, and what it has said."""

    config: CallerConfig
    answers: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    killed_after: int | None = None
    is_ready: bool = False
    is_over: bool = False

    @property
    def is_answered(self) -> bool:
        """Tell whether all of its starts were answered."""
        return len(self.answers) == self.config.starts

    async def run(self) -> int:
        """Run it to its end, or to its violent end, and return the exit code."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.key_caller", self.config.model_dump_json()),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            await self._listen(process)
            return await process.wait()
        finally:
            self.is_over = True
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        stream = process.stdout
        while stream and (line := await stream.readline()):
            self._take(line)
            if self.killed_after is not None and len(self.answers) >= self.killed_after and process.returncode is None:
                process.kill()
                return

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            # Temporal's SDK tells of calls that it tries again on stdout.
            return
        word = from_json(line)
        self.is_ready = True
        if "error" in word and "run_id" not in word:
            self.errors.append(word["error"])
        elif word:
            self.answers.append(word)


if __name__ == "__main__":
    configure_logging("error")
    asyncio.run(call(CallerConfig.model_validate_json(sys.argv[1])))
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; there is nothing left to clean up.
    os._exit(0)
