"""Activities that fail while their workflow says Running: found in a namespace, paused, resumed, tried again now.

Of any workflow that is not one of Redrive's own, with or without the plugin. Temporal has no list of them: open
workflows are listed and described, a bounded number for each page.
"""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import Field
from temporalio.api.common.v1 import WorkflowExecution as ExecutionName
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    PauseActivityRequest,
    ResetActivityRequest,
    UnpauseActivityRequest,
)
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import (
    ATTEMPT_TEXT_LIMIT,
    DEFAULT_TENANT,
    Activity,
    ActivityName,
    ActivityVerb,
    Message,
    PendingActivity,
    SearchAttribute,
    Workflow,
)
from redrive.errors import InvalidInput, RunNotFound, Unavailable
from redrive.redaction.redactor import Redactor
from redrive.visibility import tenant_of

LOOKED_AT: Final = 200
_AT_ONCE: Final = 8
_UNREAD: Final = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.INTERNAL, RPCStatusCode.UNKNOWN})


class PendingActivities(Message):
    """What was found among the open workflows that one page looked at."""

    activities: list[PendingActivity]
    looked_at: int = Field(description="how many open workflows")
    cursor: str | None = Field(description="for the next page; none: these were the last workflows")


async def list_failing(
    client: Client, tenant: str | None, redactor: Redactor, cursor: str | None = None, limit: int = LOOKED_AT
) -> PendingActivities:
    """Look at a page of open workflows, and return their failing and paused activities, those due first."""
    pages = client.list_workflows(_query(tenant), page_size=limit, next_page_token=_read(cursor))
    try:
        await pages.fetch_next_page()
    except RPCError as error:
        if cursor and error.status in _UNREAD:
            raise InvalidInput("cursor: not one of this list") from error
        raise Unavailable(f"Temporal did not list workflows: {error.message}") from error
    found = list(pages.current_page or ())
    places = asyncio.Semaphore(_AT_ONCE)

    async def look(execution: WorkflowExecution) -> list[PendingActivity]:
        async with places:
            return await _failing(client, execution, redactor)

    rows = [row for each in await asyncio.gather(*map(look, found)) for row in each]
    rows.sort(key=lambda row: (row.next_at or datetime.max.replace(tzinfo=UTC), row.workflow_id, row.activity_id))
    token = base64.urlsafe_b64encode(pages.next_page_token).decode() if pages.next_page_token else None
    return PendingActivities(activities=rows, looked_at=len(found), cursor=token)


async def activity_of(client: Client, tenant: str | None, name: ActivityName, redactor: Redactor) -> PendingActivity:
    """Return a failing activity of this tenant, or raise RunNotFound: one of another tenant is not found."""
    missing = RunNotFound(f"no open workflow of yours has the failing activity {name.activity_id[:64]!r}")
    try:
        execution = await client.get_workflow_handle(name.workflow_id, run_id=name.execution or None).describe()
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            raise missing from None
        raise Unavailable(f"Temporal did not describe the workflow: {error.message}") from error
    rows = _rows(execution, execution.raw_description.pending_activities, redactor)
    found = next((row for row in rows if row.activity_id == name.activity_id), None)
    if found is None or tenant not in {None, found.tenant}:
        raise missing
    return found


async def command_activity(client: Client, verb: ActivityVerb, name: ActivityName, *, by: str, reason: str) -> None:
    """Pause an activity, let it go on, or have it tried again now, its attempts counted from the first."""
    service = client.workflow_service
    execution = ExecutionName(workflow_id=name.workflow_id, run_id=name.execution)
    common = {"namespace": client.namespace, "execution": execution, "identity": by, "id": name.activity_id}
    try:
        match verb:
            case ActivityVerb.PAUSE:
                await service.pause_activity(PauseActivityRequest(**common, reason=reason))  # type: ignore[arg-type]
            case ActivityVerb.UNPAUSE:
                await service.unpause_activity(UnpauseActivityRequest(**common))  # type: ignore[arg-type]
            case ActivityVerb.RETRY:
                await service.reset_activity(ResetActivityRequest(**common))  # type: ignore[arg-type]
    except RPCError as error:
        raise _refused(verb, name, error) from error


def _refused(verb: ActivityVerb, name: ActivityName, error: RPCError) -> RunNotFound | Unavailable:
    if error.status is RPCStatusCode.NOT_FOUND:
        return RunNotFound(f"activity {name.activity_id[:64]!r} is not pending any more")
    if error.status is RPCStatusCode.UNIMPLEMENTED:
        return Unavailable(f"this Temporal server cannot {verb} activities")
    return Unavailable(f"Temporal did not {verb} the activity: {error.message}")


def _query(tenant: str | None) -> str:
    own = " AND ".join(f"WorkflowType != '{name}'" for name in Workflow)
    query = f"ExecutionStatus = 'Running' AND {own}"
    if tenant is None:
        return query
    named = f"{SearchAttribute.TENANT} = '{tenant}'"
    return (
        f"{query} AND ({named} OR {SearchAttribute.TENANT} IS NULL)"
        if tenant == DEFAULT_TENANT
        else (f"{query} AND {named}")
    )


async def _failing(client: Client, execution: WorkflowExecution, redactor: Redactor) -> list[PendingActivity]:
    try:
        description = await client.get_workflow_handle(execution.id, run_id=execution.run_id).describe()
    except RPCError as error:
        # It has ended and was deleted since it was listed.
        if error.status is RPCStatusCode.NOT_FOUND:
            return []
        raise Unavailable(f"Temporal did not describe a workflow: {error.message}") from error
    return _rows(execution, description.raw_description.pending_activities, redactor)


def _rows(
    execution: WorkflowExecution, pending: Sequence[PendingActivityInfo], redactor: Redactor
) -> list[PendingActivity]:
    # The attempts of modules are listed by the workers that make them.
    shown = (each for each in pending if each.activity_type.name != Activity.RUN_STEP and _is_failing(each))
    return [_row(execution, each, redactor) for each in shown]


def _is_failing(pending: PendingActivityInfo) -> bool:
    return pending.paused or (pending.attempt > 1 and pending.HasField("last_failure"))


def _row(execution: WorkflowExecution, pending: PendingActivityInfo, redactor: Redactor) -> PendingActivity:
    waits = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    failure = pending.last_failure
    return PendingActivity(
        workflow_id=execution.id,
        execution=execution.run_id or "",
        activity_id=pending.activity_id,
        workflow_type=execution.workflow_type,
        tenant=tenant_of(execution.typed_search_attributes) or DEFAULT_TENANT,
        activity=pending.activity_type.name,
        attempt=pending.attempt,
        max_attempts=pending.maximum_attempts,
        is_paused=pending.paused,
        error_type=failure.application_failure_info.type or failure.WhichOneof("failure_info") or "",
        error=redactor.beginning(failure.message, ATTEMPT_TEXT_LIMIT),
        next_at=_moment(pending.next_attempt_schedule_time) if waits and not pending.paused else None,
    )


def _moment(at: Timestamp) -> datetime | None:
    return at.ToDatetime(tzinfo=UTC) if at.seconds else None


def _read(cursor: str | None) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(cursor) if cursor else None
    except (binascii.Error, ValueError):
        raise InvalidInput("cursor: not one of this list") from None
