"""The client: start runs, query them, wait for them, cancel them.

What it offers beyond runs is imported when it is used: who starts runs waits for no models of dead letters.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict

from pydantic import BaseModel
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode

from redrive.connection import connect_temporal, database_url
from redrive.contracts import (
    DEFAULT_TENANT,
    Catalog,
    Query,
    Resolution,
    ResolveRequest,
    RunInput,
    RunResult,
    RunStatus,
    RunSummary,
    RunView,
    StartedRun,
    StepSnapshot,
    Workflow,
)
from redrive.documents import check_payload, patched, step_input, validated_run_input
from redrive.edits import UnknownField, unknown_fields
from redrive.errors import (
    InvalidInput,
    RunCanceled,
    RunFailed,
    RunNotFound,
    Unavailable,
    UnknownPipeline,
)
from redrive.field_types import checked_label_filter
from redrive.idempotency.claims import Claims
from redrive.idempotency.starts import KeyedStarts
from redrive.keys import KEY_TTL, check_identifiers, check_key, new_run_id
from redrive.modules import DEFAULT_REGISTRY, Pipeline, Registry
from redrive.pending_steps import with_pending
from redrive.prefixes import PREFIXES_COUNTED, SHORTEST_PREFIX, only_one
from redrive.rpc_errors import unavailable
from redrive.run_labels import checked_labels
from redrive.run_lists import list_runs
from redrive.settings import Settings, read_settings
from redrive.starts import start_run
from redrive.tracing import labelled, note, span
from redrive.visibility import execution_status, quoted, runs_query, summary
from redrive.worker_queries import ask

if TYPE_CHECKING:
    from redrive.bulk_client import BulkOperations
    from redrive.dead_letter_client import DeadLetters
    from redrive.dead_letters import LetterId, ReplayOptions, RunDocument
    from redrive.published_catalogs import PublishedCatalogs
    from redrive.schedules import PipelineSchedules

# More would not be faster: they would wait in the server, and time out there.
STARTS_AT_ONCE: Final = 100
# A result of one of these is waited for without a check that it is a run.
STARTS_REMEMBERED: Final = 10_000
# A worker's request for tasks is answered after a minute if there is none, and then repeated.
POLL_LENGTH: Final = timedelta(seconds=70)
ANSWER_TIMEOUT = timedelta(seconds=5)
_ERRORS = {error.code: error for error in (InvalidInput, UnknownPipeline)}


@dataclass(frozen=True)
class EditCheck:
    """What is known about an edit before it is sent."""

    problem: str | None = None
    unknown: Sequence[UnknownField] = ()

    @property
    def refusal(self) -> str | None:
        """Why a worker would refuse it: it does not fit, or names a field that the step does not read."""
        unread = (str(field) for field in self.unknown if "." not in field.path)
        return self.problem or next(unread, None)


class Redrive:
    """Start runs and follow them. One object serves a whole process."""

    def __init__(
        self,
        client: Client,
        *,
        task_queue: str,
        registry: Registry = DEFAULT_REGISTRY,
        claims: Claims | None = None,
        catalogs: "PublishedCatalogs | None" = None,
        approvals: bool = False,
        eager: bool = False,
    ) -> None:
        """Use a connected client. Without `claims` a key lives as long as Temporal keeps its run.

        With `catalogs`, what no worker would take is refused at the start; without, the run fails.
        With `approvals` every bulk operation that is started here waits for another person's approval.
        With `eager`, a worker of the same client begins the runs that are started here, if it has room for them.
        """
        self._client = client
        self._task_queue = task_queue
        self._registry = registry
        self._claims = claims
        self._catalogs = catalogs
        self._keyed = KeyedStarts(client, task_queue, claims, self._check, eager)
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._started: dict[str, None] = {}
        self._approvals = approvals
        self._eager = eager

    @classmethod
    async def connect(cls, settings: Settings | None = None) -> Self:
        """Connect as the environment says; by default, to the embedded stack of this directory."""
        settings = settings or read_settings()
        return cls.on(await connect_temporal(settings), settings)

    @classmethod
    def on(
        cls, client: Client, settings: Settings, registry: Registry = DEFAULT_REGISTRY, *, eager: bool = False
    ) -> Self:
        """Use a connected client, and what the settings name besides."""
        return cls(
            client,
            task_queue=settings.task_queue,
            registry=registry,
            **_database(settings, client.namespace),
            approvals=settings.approvals,
            eager=eager,
        )

    @property
    def server(self) -> str:
        """Which Temporal server this is, and which namespace."""
        return f"{self._client.service_client.config.target_host}, namespace {self._client.namespace}"

    @functools.cached_property
    def dead_letters(self) -> "DeadLetters":
        """Commands to dead letters: replay, resolve, discard, …"""
        from redrive.dead_letter_client import DeadLetters  # noqa: PLC0415

        return DeadLetters(self._client, self._task_queue)

    @functools.cached_property
    def bulk(self) -> "BulkOperations":
        """Commands to many dead letters at once."""
        from redrive.bulk_client import BulkOperations  # noqa: PLC0415

        return BulkOperations(self._client, self._task_queue, approvals=self._approvals)

    @functools.cached_property
    def schedules(self) -> "PipelineSchedules":
        """Pipelines that run at set times."""
        from redrive.schedules import PipelineSchedules  # noqa: PLC0415

        return PipelineSchedules(self._client, self._task_queue, self._check_scheduled)

    async def close(self) -> None:
        """Close the database connection, which the first start that needed it opened."""
        if self._claims:
            await self._claims.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(
        self,
        pipeline: str | Pipeline,
        payload: Mapping[str, Any] | BaseModel,
        *,
        tenant: str = DEFAULT_TENANT,
        key: str | None = None,
        ttl: timedelta = KEY_TTL,
        correlation_id: str | None = None,
        user_id: str | None = None,
        event_id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> StartedRun:
        """Start a run. The same key gives the same run, however often it is started, and later its result.

        No worker is needed: the run waits in Temporal for one. Raises InvalidInput if no worker would take the payload,
        as far as this process can know; otherwise the run fails for the same reason. Starts beyond what one process
        sends at once wait for their turn.
        `ttl` is how long the key is kept; a key whose run is open is kept longer. Raises IdempotencyMismatch if the key
        belongs to another pipeline or payload, OutcomeUnknown if the same key must be tried again.
        `event_id` names the stored event that the run is for: its steps are then recorded as the event's projectors.
        `labels` are on every log line, span and dead letter of the run, and lists can be filtered by them.
        """
        document = check_payload(payload.model_dump(mode="json") if isinstance(payload, BaseModel) else payload)
        name = pipeline if isinstance(pipeline, str) else pipeline.name
        check_identifiers(key=key, correlation_id=correlation_id, user_id=user_id)
        run = validated_run_input(
            pipeline=name,
            payload=document,
            tenant=tenant,
            key=check_key(key) if key is not None else None,
            correlation_id=correlation_id,
            user_id=user_id,
            event_id=event_id,
            labels=checked_labels(labels or {}),
        )
        if name in self._registry.pipelines:
            # Before a key is claimed for what cannot run.
            run.steps = self._registry.resolve(name, document)
        async with self._starting:
            return await self._start_traced(run, ttl)

    async def _start_traced(self, run: RunInput, ttl: timedelta) -> StartedRun:
        with labelled(run.labels), span("run.start", "client", pipeline=run.pipeline, tenant_id=run.tenant):
            started = await self._start(run) if run.key is None else await self._keyed.start(run, ttl)
            note(run_id=started.run_id)
        self._started[started.run_id] = None
        if len(self._started) > STARTS_REMEMBERED:
            del self._started[next(iter(self._started))]
        return started

    async def steps(self, pipeline: str, payload: Mapping[str, Any]) -> list[StepSnapshot]:
        """Return the steps that a run would have, or raise InvalidInput if it could never start.

        Raises Unavailable if neither this process nor the workers' catalogs know, and no worker answers.
        """
        document = check_payload(payload)
        run = validated_run_input(pipeline=pipeline, payload=document)
        if pipeline in self._registry.pipelines:
            return self._registry.resolve(pipeline, document)
        await self._check(run)
        known = await self._catalogs.steps(pipeline, document) if self._catalogs else None
        return known or await self._ask_steps(run)

    async def _check(self, run: RunInput) -> None:
        """Refuse what no worker would take, as far as that is known."""
        if run.steps is None and self._catalogs:
            refusal = await self._catalogs.refusal(run.pipeline, run.payload)
            if refusal:
                raise refusal

    async def _check_scheduled(self, run: RunInput) -> None:
        """Refuse what no worker would take today. The steps are those of the day on which the run starts."""
        if run.pipeline in self._registry.pipelines:
            self._registry.resolve(run.pipeline, run.payload)
        await self._check(run)

    async def _ask_steps(self, run: RunInput) -> list[StepSnapshot]:
        request = ResolveRequest(pipeline=run.pipeline, payload=run.payload)
        resolution: Resolution = await self._ask(Workflow.RESOLVE_PIPELINE, Resolution, request)
        if resolution.problem:
            raise _ERRORS.get(resolution.code or "", InvalidInput)(resolution.problem)
        return resolution.steps

    async def _start(self, run: RunInput) -> StartedRun:
        run_id = new_run_id()
        await self._check(run)
        try:
            await start_run(self._client, self._task_queue, run_id, run, eager=self._eager)
        except RPCError as error:
            raise unavailable(error) from error
        # If Temporal already knows a new id, it is this same start, retried on the way.
        return StartedRun(run_id=run_id, is_cached=False, status=RunStatus.RUNNING)

    async def status(self, run_id: str) -> RunView:
        """Return a run's status: steps, attempts, the next retry, errors."""
        description, answer = await asyncio.gather(self._describe(run_id), self._query(run_id))
        if isinstance(answer, RunView):
            view = answer
        else:
            row = summary(description.raw_info)
            view = RunView(run_id=row.run_id, tenant=row.tenant, pipeline=row.pipeline, status=row.status, note=answer)
        if view.status.closed and not execution_status(description).closed:
            # It has ended since, or is about to: Temporal alone knows that it has.
            description = await self._describe(run_id)
            view.status = RunStatus.RUNNING
        view.closed_at = description.close_time
        if execution_status(description).closed:
            # A run that was terminated, or that never read its input, does not know that it has ended.
            view.status = execution_status(description)
        return with_pending(view, description)

    async def find(self, text: str, *, tenant: str | None = None) -> str:
        """Return the id of the run that a text names: the id itself, or a beginning of it that no other run has.

        Raises RunNotFound if no run has it, InvalidInput if several do. Temporal's list lags behind by about a second.
        """
        query = runs_query(tenant=tenant, status=None, pipeline=None)
        found: set[str] = set()
        try:
            await self._describe(text)
        except RunNotFound:
            beginnings = {text, f"run-{text}"} if len(text.removeprefix("run-")) >= SHORTEST_PREFIX else set()
            for beginning in beginnings:
                wanted = f"{query} AND WorkflowId STARTS_WITH {quoted(beginning)}"
                found |= {row.id async for row in self._client.list_workflows(wanted, limit=PREFIXES_COUNTED)}
        else:
            return text
        return only_one(text, found, "run", RunNotFound)

    async def is_open(self, run_id: str) -> bool:
        """Ask Temporal whether a run is open; one that Temporal does not know is not."""
        try:
            return not execution_status(await self._describe(run_id)).closed
        except RunNotFound:
            return False

    async def open_among(self, run_ids: Sequence[str]) -> set[str]:
        """Return which of these runs Temporal lists as open, in one request. The list lags behind by about a second."""
        query = runs_query(tenant=None, status=None, pipeline=None, run_ids=run_ids)
        try:
            listed = self._client.list_workflows(f"{query} AND ExecutionStatus = 'Running'")
            return {execution.id async for execution in listed}
        except RPCError as error:
            raise unavailable(error) from error

    async def result(self, run_id: str) -> RunResult:
        """Wait until a run has ended and return its result. Raises RunFailed or RunCanceled.

        A parked run has not ended: this waits until an operator replays, resolves or discards it, however long that
        takes. Check `status` where that matters, or use a timeout.
        """
        if run_id not in self._started:
            await self._describe(run_id)
        try:
            return await self._handle(run_id).result()
        except WorkflowFailureError as error:
            raise _outcome(run_id, error.cause) from error
        except RPCError as error:
            raise _refusal(run_id, error) from error

    async def cancel(self, run_id: str, *, reason: str) -> None:
        """Ask a run to stop: its running step is interrupted, later ones do not start."""
        if execution_status(await self._describe(run_id)).closed:
            raise InvalidInput(f"run {run_id!r} has ended already; only an open run can be canceled")
        try:
            await self._handle(run_id).cancel(reason=reason)
        except RPCError as error:
            raise unavailable(error) from error

    async def list_runs(
        self,
        *,
        tenant: str | None = None,
        status: RunStatus | None = None,
        pipeline: str | None = None,
        label: str | None = None,
        limit: int = 50,
    ) -> AsyncIterator[RunSummary]:
        """Iterate over runs, newest first. Temporal's list lags behind by about a second.

        `label` are labels that they have, all of them: `mission_id=42,stage_id=2`.
        """
        query = runs_query(tenant=tenant, status=status, pipeline=pipeline, label=checked_label_filter(label))
        async for row in list_runs(self._client.workflow_service, self._client.namespace, query, limit):
            yield row

    async def catalog(self) -> Catalog:
        """Return the modules and pipelines that the workers know: as they published it, or else from a worker."""
        published = await self._catalogs.catalog() if self._catalogs else None
        if published:
            return published
        answer: Catalog = await self._ask(Workflow.DESCRIBE_MODULES, Catalog)
        return answer

    async def check_edit(self, letter: "LetterId", command: "ReplayOptions") -> EditCheck:
        """Hold the edit of a replay against the run's own input and the module's, as far as this process can know."""
        if command.input_patch is None:
            return EditCheck()
        step, patch = command.from_step or letter.step, command.input_patch
        run = await self._document(letter.run_id)
        reads = next((each.reads for each in run.steps if each.name == step), None)
        earlier = run.run.state.patches.get(step, []) if run.run.state else []
        edited = patched(step_input(run.document, reads), [*earlier, patch])
        problem = await self._catalogs.input_problem(step, edited) if self._catalogs else None
        modules = (await self.catalog()).modules
        schema = next((module.input_schema for module in modules if module.name == step), None)
        return EditCheck(problem=problem, unknown=unknown_fields(patch, schema) if schema else [])

    async def output_problem(self, letter: "LetterId", output: object) -> str | None:
        """Return why a dead step could not have returned an output, as far as this process can know."""
        return await self._catalogs.output_problem(letter.step, output) if self._catalogs else None

    async def _document(self, run_id: str) -> "RunDocument":
        from redrive.dead_letters import RunDocument  # noqa: PLC0415

        await self._describe(run_id)
        try:
            found: RunDocument = await self._handle(run_id).query(
                Query.DOCUMENT, result_type=RunDocument, rpc_timeout=ANSWER_TIMEOUT
            )
        except (RPCError, WorkflowQueryFailedError) as error:
            raise Unavailable(f"run {run_id!r} did not answer: {error}") from error
        return found

    async def has_worker(self) -> bool:
        """Ask Temporal whether a worker polls the task queue. One that was killed is counted for up to a minute."""
        request = DescribeTaskQueueRequest(
            namespace=self._client.namespace,
            task_queue=TaskQueue(name=self._task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        try:
            answer = await self._client.workflow_service.describe_task_queue(request, timeout=ANSWER_TIMEOUT)
        except RPCError as error:
            raise unavailable(error) from error
        since = datetime.now(UTC) - POLL_LENGTH
        return any(poller.last_access_time.ToDatetime(UTC) > since for poller in answer.pollers)

    def _handle(self, run_id: str) -> WorkflowHandle[Any, RunResult]:
        return self._client.get_workflow_handle(run_id, result_type=RunResult)

    async def _describe(self, run_id: str) -> WorkflowExecution:
        try:
            description = await self._handle(run_id).describe()
        except RPCError as error:
            raise _refusal(run_id, error) from error
        if description.workflow_type != Workflow.MODULE_RUN:
            raise RunNotFound(f"{run_id!r} is a {description.workflow_type}, not a run")
        return description

    async def _query(self, run_id: str) -> RunView | str:
        """Return a worker's answer, or why there is none."""
        try:
            view: RunView = await self._handle(run_id).query(
                Query.STATUS, result_type=RunView, rpc_timeout=ANSWER_TIMEOUT
            )
        except WorkflowQueryFailedError as error:
            return f"the run did not answer: {error}"
        except RPCError:
            return f"no worker answered on task queue {self._task_queue!r}: is one running?"
        return view

    async def _ask(self, workflow: Workflow, answer: type[Any], *arguments: object) -> Any:
        """Run a query workflow on a worker."""
        return await ask(self._client, self._task_queue, workflow, answer, *arguments, timeout=ANSWER_TIMEOUT)


class _Database(TypedDict, total=False):
    claims: Claims
    catalogs: "PublishedCatalogs"


def _database(settings: Settings, namespace: str) -> _Database:
    """Return the stores of these settings, if they name a database. Both use the same connections."""
    # Imported late, so that importing this module does not load the database driver.
    from redrive.idempotency.postgres_claims import PostgresClaims  # noqa: PLC0415
    from redrive.published_catalogs import PublishedCatalogs  # noqa: PLC0415

    try:
        claims = PostgresClaims(
            database_url(settings),
            free_failed=settings.free_failed_keys,
            redactor=settings.redactor(),
        )
    except Unavailable:
        return {}
    return {"claims": claims, "catalogs": PublishedCatalogs(claims.pool, namespace, settings.task_queue)}


def _refusal(run_id: str, error: RPCError) -> RunNotFound | Unavailable:
    if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
        return RunNotFound(f"no run has the id {run_id!r}; `redrive run list` shows those there are")
    return unavailable(error)


def _outcome(run_id: str, cause: BaseException) -> RunFailed | RunCanceled:
    if isinstance(cause, CancelledError):
        return RunCanceled(f"run {run_id!r} was canceled")
    text = cause.message if isinstance(cause, ApplicationError) else str(cause)
    return RunFailed(f"run {run_id!r} failed: {text}")
