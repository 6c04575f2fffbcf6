"""`/retrying/activities`: failing activities of workflows that are no pipeline runs; pause, unpause, retry now.

Each command is in the audit log before Temporal is asked.
"""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from redrive.console.api.answers import CommandBody, refusals
from redrive.console.app_state import TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.contracts import NAME_PATTERN, ActivityName, ActivityVerb, Message
from redrive.pending_activities import LOOKED_AT, PendingActivities, activity_of, command_activity, list_failing
from redrive.store.runs import put_activity_command

router = APIRouter(prefix="/retrying/activities", tags=["runs"])


class ActivitiesPage(Message):
    """Which page of the list."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")
    limit: int = Field(default=LOOKED_AT, ge=1, le=LOOKED_AT, description="how many open workflows are looked at")
    cursor: str | None = Field(default=None, max_length=4096)


class ActivityBody(CommandBody):
    """A command to an activity."""

    workflow_id: str = Field(min_length=1, max_length=1000)
    execution: str = Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", description="Temporal's run id")
    activity_id: str = Field(min_length=1, max_length=1000)


class ActivityAnswer(Message):
    """The outcome of a command to an activity."""

    message: str


_MESSAGES = {
    ActivityVerb.PAUSE: "paused: it is not tried again until somebody lets it go on",
    ActivityVerb.UNPAUSE: "it goes on",
    ActivityVerb.RETRY: "it is tried again now, its attempts counted from the first",
}


@router.get("", responses=refusals(400))
async def activities(
    app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[ActivitiesPage, Query()]
) -> PendingActivities:
    """List activities that fail while their workflow says Running. Each page looks at so many open workflows."""
    return await list_failing(await app_state.temporal(), tenant, app_state.redactor, choice.cursor, choice.limit)


@router.post("/{verb}", status_code=202, responses=refusals(400, 404, 413, 415))
async def command(
    app_state: TheAppState, caller: Operator, tenant: Scope, verb: ActivityVerb, wanted: ActivityBody
) -> ActivityAnswer:
    """Pause an activity, let it go on, or have it tried again now."""
    client = await app_state.temporal()
    named = ActivityName(**wanted.model_dump(include=set(ActivityName.model_fields)))
    found = await activity_of(client, tenant, named, app_state.redactor)
    reason = app_state.redactor.text(wanted.reason)
    await put_activity_command(await app_state.pool(), verb, found, actor=caller.name, reason=reason)
    await command_activity(client, verb, found, by=caller.name, reason=reason)
    return ActivityAnswer(message=_MESSAGES[verb])
