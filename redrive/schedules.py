"""Schedules: what Temporal runs at set times. Those of pipelines belong to a tenant; those of maintenance to a queue.

A pipeline's schedule is the name of a tenant's, its times, and the run input. Temporal keeps it: there is no table.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, StringConstraints
from temporalio.api.workflowservice.v1 import ListScheduleMatchingTimesRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleBackfill,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import (
    DEFAULT_TENANT,
    SCHEDULED_PREFIX,
    Message,
    Name,
    RunInput,
    SearchAttribute,
    Workflow,
    scheduled_run_id,
)
from redrive.documents import check_payload, validated_run_input
from redrive.errors import InvalidInput, ScheduleExists, ScheduleNotFound
from redrive.fairness import turn_of
from redrive.field_types import Labels
from redrive.keys import check_identifiers
from redrive.rpc_errors import unavailable
from redrive.run_labels import check_attribute, checked_labels
from redrive.visibility import quoted, search_attributes, shown_value, with_labels

SWEEP_INTERVAL: Final = timedelta(minutes=1)
ANCHOR_INTERVAL: Final = timedelta(hours=1)
PURGE_INTERVAL: Final = timedelta(days=1)
# Temporal keeps at most so many starts of a schedule waiting.
BACKFILL_LIMIT: Final = 1000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Temporal starts what was triggered within some milliseconds; with `skip`, perhaps never.
TRIGGER_TIMEOUT: Final = 3.0
TRIGGER_INTERVAL: Final = 0.1
RPC_TIMEOUT: Final = timedelta(seconds=10)
T = TypeVar("T")
_ID_PREFIX: Final = "schedule-"
# Neither a tenant nor a schedule has it in its name, so no two pairs share an id.
_SEPARATOR: Final = "."

Cron = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=r"^[^#\n=]+$")]
Interval = Annotated[timedelta, Field(ge=timedelta(seconds=1), le=timedelta(days=3650))]


class Overlap(StrEnum):
    """What happens when a run is due while an earlier one of the schedule is open. A parked run is open."""

    ALLOW_ALL = "allow_all"
    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"


class NewSchedule(Message):
    """A schedule to create: whose it is, what it starts, and when."""

    name: Name
    tenant: Name = DEFAULT_TENANT
    pipeline: Name
    payload: dict[str, Any] = Field(default_factory=dict)
    labels: Labels = Field(default_factory=dict, description="of each run: on its log lines, spans and dead letters")
    cron: list[Cron] = Field(default_factory=list, max_length=50, description="`0 5 * * 1-5`; several are all used")
    every: list[Interval] = Field(default_factory=list, max_length=50, description="intervals, counted from 1970")
    time_zone: str = Field(default="UTC", min_length=1, max_length=100, description="of `cron`: `Europe/Vienna`")
    jitter: timedelta = Field(
        default=timedelta(0), ge=timedelta(0), le=timedelta(days=1), description="a random delay of up to this"
    )
    overlap: Overlap = Overlap.ALLOW_ALL
    paused: bool = False
    note: str = Field(default="", max_length=1000)


class ScheduledRunRef(Message):
    """A run that a schedule has started."""

    run_id: str
    due_at: datetime
    started_at: datetime


class ScheduleSummary(Message):
    """A schedule in a list."""

    name: str
    tenant: str
    pipeline: str
    cron: list[str]
    every: list[timedelta]
    time_zone: str
    jitter: timedelta
    paused: bool
    note: str
    next_at: list[datetime]
    recent: list[ScheduledRunRef] = Field(description="the last runs, newest first")


class ScheduleView(ScheduleSummary):
    """One schedule."""

    payload: dict[str, Any] = Field(description="what each run is given; not redacted")
    labels: dict[str, str] = Field(default_factory=dict, description="of each run")
    overlap: Overlap | None = Field(description="None: one that only Temporal knows")
    created_at: datetime
    runs: int = Field(description="how many were started")
    skipped: int = Field(description="how many were not started because an earlier one was open")


class PipelineSchedules:
    """Create schedules of pipelines and change them. A schedule is found by its tenant and its name."""

    def __init__(self, client: Client, task_queue: str, check: Callable[[RunInput], Awaitable[None]]) -> None:
        """Use a connected client. `check` refuses a run input that no worker would take."""
        self._client = client
        self._task_queue = task_queue
        self._check = check

    async def check(self, wanted: NewSchedule) -> RunInput:
        """Return the input of each run, or raise: ScheduleExists, or InvalidInput if no worker would take it."""
        if not wanted.cron and not wanted.every:
            raise InvalidInput("cron: a schedule needs times: give cron or every")
        check_identifiers(name=wanted.name)
        payload = check_payload(wanted.payload)
        labels = checked_labels(wanted.labels)
        run = validated_run_input(pipeline=wanted.pipeline, payload=payload, tenant=wanted.tenant, labels=labels)
        await self._check(run)
        with contextlib.suppress(ScheduleNotFound):
            await self._describe(wanted.tenant, wanted.name)
            raise _exists(wanted)
        return run

    async def create(self, wanted: NewSchedule) -> ScheduleView:
        """Create a schedule, or raise what `check` raises. Temporal checks its times."""
        run = await self.check(wanted)
        try:
            await self._client.create_schedule(
                _schedule_id(wanted.tenant, wanted.name),
                self._schedule(wanted, run),
                # The labels as well: a namespace that would refuse them of each run refuses them now.
                search_attributes=with_labels(
                    search_attributes(tenant=wanted.tenant, pipeline=wanted.pipeline), wanted.labels
                ),
                rpc_timeout=RPC_TIMEOUT,
            )
        except ScheduleAlreadyRunningError:
            raise _exists(wanted) from None
        except RPCError as error:
            check_attribute(error)
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                raise InvalidInput(f"Temporal refuses the schedule: {error.message[:300]}") from error
            raise unavailable(error) from error
        return await self.show(wanted.tenant, wanted.name)

    def _schedule(self, wanted: NewSchedule, run: RunInput) -> Schedule:
        return Schedule(
            action=ScheduleActionStartWorkflow(
                Workflow.SCHEDULED_RUN,
                run,
                id=f"{SCHEDULED_PREFIX}run-{wanted.tenant}{_SEPARATOR}{wanted.name}",
                task_queue=self._task_queue,
                static_summary=f"schedule {wanted.name} of tenant {wanted.tenant}",
                priority=turn_of(wanted.tenant),
            ),
            spec=ScheduleSpec(
                # Temporal keeps the comment, and not the expression.
                cron_expressions=[f"{cron} #{cron}" for cron in wanted.cron],
                intervals=[ScheduleIntervalSpec(every=every) for every in wanted.every],
                time_zone_name=wanted.time_zone,
                jitter=wanted.jitter or None,
            ),
            policy=SchedulePolicy(overlap=_POLICIES[wanted.overlap]),
            state=ScheduleState(paused=wanted.paused, note=wanted.note or None),
        )

    async def list_schedules(self, tenant: str | None, limit: int = 1000) -> list[ScheduleSummary]:
        """Return the schedules of a tenant, or of all. Temporal's list lags behind by about a second."""
        query = f"{SearchAttribute.TENANT} = {quoted(tenant)}" if tenant else None
        found: list[ScheduleSummary] = []
        try:
            async for each in await self._client.list_schedules(query, rpc_timeout=RPC_TIMEOUT):
                summary = _summary(each)
                # The query already names the tenant: this is the second check, as Temporal has none of its own.
                if summary and tenant in {None, summary.tenant}:
                    found.append(summary)
                if len(found) == limit:
                    break
        except RPCError as error:
            raise unavailable(error) from error
        return sorted(found, key=lambda each: (each.tenant, each.name))

    async def show(self, tenant: str, name: str) -> ScheduleView:
        """Return one schedule, or raise ScheduleNotFound."""
        return await self._view(tenant, await self._describe(tenant, name))

    async def pause(self, tenant: str, name: str, *, note: str) -> None:
        """Start no runs until `resume`; those that are open go on."""
        await self._do(tenant, name, lambda handle: handle.pause(note=note, rpc_timeout=RPC_TIMEOUT))

    async def resume(self, tenant: str, name: str, *, note: str) -> None:
        """Start runs again, from now on."""
        await self._do(tenant, name, lambda handle: handle.unpause(note=note, rpc_timeout=RPC_TIMEOUT))

    async def delete(self, tenant: str, name: str) -> None:
        """Delete the schedule; its runs stay."""
        await self._do(tenant, name, lambda handle: handle.delete(rpc_timeout=RPC_TIMEOUT))

    async def trigger(self, tenant: str, name: str) -> str | None:
        """Start a run now, and return its id; None if the overlap policy does not let it start yet.

        Without a worker the run appears later, under that id.
        """
        known = {each.run_id for each in (await self.show(tenant, name)).recent}
        await self._do(tenant, name, lambda handle: handle.trigger(rpc_timeout=RPC_TIMEOUT))

        async def new_run() -> str | None:
            recent = (await self.show(tenant, name)).recent
            return next((each.run_id for each in recent if each.run_id not in known), None)

        run_id = await _soon(new_run)
        if run_id:
            await _soon(partial(self._has_begun, run_id))
        return run_id

    async def _has_begun(self, run_id: str) -> bool | None:
        try:
            await self._client.get_workflow_handle(run_id).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise unavailable(error) from error
        return True

    async def times(self, tenant: str, name: str, since: datetime, until: datetime) -> list[datetime]:
        """Return when runs are due in a period, which has its first and its last moment; at most BACKFILL_LIMIT."""
        _check_period(since, until)
        request = ListScheduleMatchingTimesRequest(
            namespace=self._client.namespace, schedule_id=_schedule_id(tenant, name)
        )
        # A list has no time that is due at its very beginning; a backfill has.
        request.start_time.FromDatetime(max(since, EPOCH) - timedelta(milliseconds=1))
        request.end_time.FromDatetime(until)
        await self._describe(tenant, name)
        try:
            answer = await self._client.workflow_service.list_schedule_matching_times(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            raise unavailable(error) from error
        return [each.ToDatetime(since.tzinfo) for each in answer.start_time[:BACKFILL_LIMIT]]

    async def backfill(
        self, tenant: str, name: str, since: datetime, until: datetime, *, overlap: Overlap = Overlap.ALLOW_ALL
    ) -> int:
        """Start the runs that were due in a period, and return how many. A time that already had its run gets no other.

        Raises InvalidInput if there are BACKFILL_LIMIT or more, or none.
        """
        due = await self.times(tenant, name, since, until)
        if len(due) >= BACKFILL_LIMIT:
            raise InvalidInput(f"{BACKFILL_LIMIT} or more runs were due in that time: take a shorter one")
        if not due:
            raise InvalidInput("no run was due in that time")
        period = ScheduleBackfill(start_at=since, end_at=until, overlap=_POLICIES[overlap])
        await self._do(tenant, name, lambda handle: handle.backfill(period, rpc_timeout=RPC_TIMEOUT))
        return len(due)

    async def _describe(self, tenant: str, name: str) -> ScheduleDescription:
        return await self._do(tenant, name, lambda handle: handle.describe(rpc_timeout=RPC_TIMEOUT))

    async def _do(self, tenant: str, name: str, act: Callable[[ScheduleHandle], Awaitable[T]]) -> T:
        try:
            return await act(self._client.get_schedule_handle(_schedule_id(tenant, name)))
        except RPCError as error:
            if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
                raise ScheduleNotFound(
                    f"tenant {tenant[:64]!r} has no schedule {name[:64]!r}; "
                    "`redrive schedule list` shows those there are"
                ) from error
            raise unavailable(error) from error

    async def _view(self, tenant: str, found: ScheduleDescription) -> ScheduleView:
        summary = _summary(found)
        if summary is None or summary.tenant != tenant:
            raise ScheduleNotFound(f"{found.id!r} is not a schedule of tenant {tenant!r}")
        given = await self._run_input(found)
        return ScheduleView(
            **dict(summary),
            payload=_document(given.get("payload")),
            labels={name: value for name, value in _document(given.get("labels")).items() if isinstance(value, str)},
            overlap=next((each for each, policy in _POLICIES.items() if policy == found.schedule.policy.overlap), None),
            created_at=found.info.created_at,
            runs=found.info.num_actions,
            skipped=found.info.num_actions_skipped_overlap,
        )

    async def _run_input(self, found: ScheduleDescription) -> dict[str, Any]:
        action = found.schedule.action
        if not isinstance(action, ScheduleActionStartWorkflow) or not action.args:
            return {}
        (given,) = await self._client.data_converter.decode(action.args[:1])
        return _document(given)


def _document(value: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty one: somebody may have edited a schedule in Temporal's Web UI."""
    return value if isinstance(value, dict) else {}


async def _soon(ask: Callable[[], Awaitable[T | None]]) -> T | None:
    """Return an answer as soon as there is one; None if there is none in time."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + TRIGGER_TIMEOUT
    while True:
        answer = await ask()
        if answer is not None or loop.time() > give_up:
            return answer
        await asyncio.sleep(TRIGGER_INTERVAL)


_POLICIES: Final = {each: ScheduleOverlapPolicy[each.name] for each in Overlap}


def _exists(wanted: NewSchedule) -> ScheduleExists:
    return ScheduleExists(
        f"tenant {wanted.tenant!r} has a schedule {wanted.name!r} already: delete it first, or use another name"
    )


def _schedule_id(tenant: str, name: str) -> str:
    return f"{_ID_PREFIX}{tenant}{_SEPARATOR}{name}"


def _summary(found: ScheduleDescription | ScheduleListDescription) -> ScheduleSummary | None:
    """Return what a list shows of a schedule; None if it is not a pipeline's."""
    owner, separator, name = found.id.removeprefix(_ID_PREFIX).partition(_SEPARATOR)
    if not found.id.startswith(_ID_PREFIX) or not separator or found.schedule is None or found.info is None:
        return None
    spec, state = found.schedule.spec, found.schedule.state
    return ScheduleSummary(
        name=name,
        tenant=owner,
        pipeline=shown_value(found.typed_search_attributes, SearchAttribute.PIPELINE) or "",
        cron=[each.comment or "a calendar" for each in spec.calendars],
        every=[each.every for each in spec.intervals],
        time_zone=spec.time_zone_name or "UTC",
        jitter=spec.jitter or timedelta(0),
        paused=state.paused,
        note=state.note or "",
        next_at=[] if state.paused else list(found.info.next_action_times),
        recent=_recent(found.info.recent_actions),
    )


def _recent(actions: Iterable[ScheduleActionResult]) -> list[ScheduledRunRef]:
    return [
        ScheduledRunRef(
            run_id=scheduled_run_id(each.action.workflow_id), due_at=each.scheduled_at, started_at=each.started_at
        )
        for each in sorted(actions, key=lambda each: each.started_at, reverse=True)
        if isinstance(each.action, ScheduleActionExecutionStartWorkflow)
    ]


def _check_period(since: datetime, until: datetime) -> None:
    if since >= until:
        raise InvalidInput(f"the period ends ({until.isoformat()}) before it begins ({since.isoformat()})")


async def keep_schedules(client: Client, task_queue: str) -> None:
    """Create the maintenance schedules. Any number of workers may call this: each queue has one of each."""
    await keep_sweep_schedule(client, task_queue)
    await _keep(client, task_queue, "redrive-anchor-audit", Workflow.ANCHOR_AUDIT, ANCHOR_INTERVAL)
    await _keep(client, task_queue, "redrive-purge", Workflow.PURGE_RECORDS, PURGE_INTERVAL)


async def keep_sweep_schedule(client: Client, task_queue: str) -> None:
    """Create the schedule of the sweep over runs and keys."""
    await _keep(client, task_queue, "redrive-expire-keys", Workflow.EXPIRE_KEYS, SWEEP_INTERVAL)


async def _keep(client: Client, task_queue: str, what: str, workflow: Workflow, every: timedelta) -> None:
    name = f"{what}-{task_queue}"
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(workflow, id=name, task_queue=task_queue),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )
    try:
        await client.create_schedule(name, schedule)
    except ScheduleAlreadyRunningError:
        # An operator may have changed or paused it: it stays as it is.
        return
