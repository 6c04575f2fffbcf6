"""`/schedules`: pipelines that run at set times. Each command is in the audit log before Temporal is asked."""

from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from redrive.access import Principal, Right
from redrive.console.api.answers import CommandBody, refusals
from redrive.console.api.bulk import OneTenant
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.contracts import NAME_PATTERN, Message
from redrive.errors import InvalidInput
from redrive.field_types import Moment
from redrive.schedules import NewSchedule, Overlap, PipelineSchedules, ScheduleSummary, ScheduleView
from redrive.store.audit import Action, put_schedule_entry

router = APIRouter(prefix="/schedules", tags=["schedules"])
_REFUSALS = refusals(400, 404, 409, 413, 415)
MOST_SCHEDULES: Final = 1000


class ScheduleBody(NewSchedule, CommandBody):
    """A schedule to create. Its tenant is the caller's; an owner names it in the query."""


class BackfillBody(CommandBody):
    """Start the runs that were due in a period."""

    since: Moment
    until: Moment
    overlap: Overlap = Overlap.ALLOW_ALL


class Schedules(Message):
    """The schedules of a tenant, or of all."""

    schedules: list[ScheduleSummary]
    more: bool = Field(description="there are others, which are not here")


class ScheduleAnswer(Message):
    """The outcome of a command to a schedule."""

    message: str
    run_id: str | None = Field(default=None, description="the run that a trigger started")


class SchedulesPage(Message):
    """Of which tenant."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")


class Target(NamedTuple):
    """The schedule of a command, who gives it, and the client."""

    schedules: PipelineSchedules
    caller: Principal
    tenant: str
    name: str


async def target(app_state: TheAppState, caller: Operator, tenant: OneTenant, name: str) -> Target:
    """Return the schedule that a command is for."""
    found = (await app_state.redrive()).schedules
    await found.show(tenant, name)
    return Target(found, caller, tenant, name)


TheTarget = Annotated[Target, Depends(target)]


async def seen_schedule(app_state: AppState, caller: Principal, tenant: str, name: str) -> ScheduleView:
    """Return a schedule with its payload redacted, and only for those who may see payloads."""
    found = await (await app_state.redrive()).schedules.show(tenant, name)
    if not caller.may(Right.PAYLOADS):
        return found.model_copy(update={"payload": {}})
    return found.model_copy(update={"payload": await (await app_state.redactor_of_runs()).value_aside(found.payload)})


@router.get("", responses=refusals())
async def schedules(
    app_state: TheAppState, _caller: Reader, tenant: Scope, _choice: Annotated[SchedulesPage, Query()]
) -> Schedules:
    """List schedules. Temporal's list lags behind by about a second."""
    return await some_schedules(app_state, tenant)


async def some_schedules(app_state: AppState, tenant: str | None) -> Schedules:
    """Return as many schedules as one answer or page has."""
    rows = await (await app_state.redrive()).schedules.list_schedules(tenant, MOST_SCHEDULES + 1)
    return Schedules(schedules=rows[:MOST_SCHEDULES], more=len(rows) > MOST_SCHEDULES)


@router.post("", status_code=201, responses=_REFUSALS)
async def create(app_state: TheAppState, caller: Operator, tenant: OneTenant, wanted: ScheduleBody) -> ScheduleView:
    """Create a schedule."""
    fields = {name: getattr(wanted, name) for name in NewSchedule.model_fields}
    new = NewSchedule(**fields | {"tenant": tenant})
    found = (await app_state.redrive()).schedules
    await found.check(new)
    facts = new.model_dump(mode="json", include={"pipeline", "labels", "cron", "every", "time_zone", "overlap"})
    named = Target(found, caller, tenant, new.name)
    await _note(app_state, named, Action.SCHEDULE_CREATE_REQUESTED, wanted, **facts)
    try:
        await found.create(new)
    except InvalidInput as error:
        await _note(app_state, named, Action.SCHEDULE_CREATE_REFUSED, wanted, error=str(error))
        raise
    return await seen_schedule(app_state, caller, tenant, new.name)


@router.get("/{name}", responses=refusals(404))
async def schedule(app_state: TheAppState, caller: Reader, tenant: OneTenant, name: str) -> ScheduleView:
    """Show a schedule: its times, its last runs and the next ones. The payload is for those who may see payloads."""
    return await seen_schedule(app_state, caller, tenant, name)


@router.post("/{name}/pause", status_code=202, responses=_REFUSALS)
async def pause(app_state: TheAppState, found: TheTarget, wanted: CommandBody) -> ScheduleAnswer:
    """Start no runs until it is resumed; those that are open go on."""
    await _note(app_state, found, Action.SCHEDULE_PAUSE_REQUESTED, wanted)
    await found.schedules.pause(found.tenant, found.name, note=f"{wanted.reason} ({found.caller.name})")
    return ScheduleAnswer(message="paused")


@router.post("/{name}/resume", status_code=202, responses=_REFUSALS)
async def resume(app_state: TheAppState, found: TheTarget, wanted: CommandBody) -> ScheduleAnswer:
    """Start runs again, from now on."""
    await _note(app_state, found, Action.SCHEDULE_RESUME_REQUESTED, wanted)
    await found.schedules.resume(found.tenant, found.name, note=f"{wanted.reason} ({found.caller.name})")
    return ScheduleAnswer(message="resumed")


@router.post("/{name}/trigger", status_code=202, responses=_REFUSALS)
async def trigger(app_state: TheAppState, found: TheTarget, wanted: CommandBody) -> ScheduleAnswer:
    """Start a run now."""
    await _note(app_state, found, Action.SCHEDULE_TRIGGER_REQUESTED, wanted)
    run_id = await found.schedules.trigger(found.tenant, found.name)
    return ScheduleAnswer(message="started" if run_id else "an earlier run is open: it starts no other", run_id=run_id)


@router.post("/{name}/backfill", status_code=202, responses=_REFUSALS)
async def backfill(app_state: TheAppState, found: TheTarget, wanted: BackfillBody) -> ScheduleAnswer:
    """Start the runs that were due in a period; a time that had its run gets no other."""
    facts = wanted.model_dump(mode="json", include={"since", "until", "overlap"})
    await _note(app_state, found, Action.SCHEDULE_BACKFILL_REQUESTED, wanted, **facts)
    due = await found.schedules.backfill(found.tenant, found.name, wanted.since, wanted.until, overlap=wanted.overlap)
    return ScheduleAnswer(message=f"{due} runs were due in that time: they start")


@router.post("/{name}/delete", status_code=202, responses=_REFUSALS)
async def delete(app_state: TheAppState, found: TheTarget, wanted: CommandBody) -> ScheduleAnswer:
    """Delete a schedule; its runs stay."""
    await _note(app_state, found, Action.SCHEDULE_DELETE_REQUESTED, wanted)
    await found.schedules.delete(found.tenant, found.name)
    return ScheduleAnswer(message="deleted")


async def _note(app_state: AppState, found: Target, action: Action, wanted: CommandBody, **facts: Any) -> None:
    await put_schedule_entry(
        await app_state.pool(),
        action,
        tenant=found.tenant,
        name=found.name,
        actor=found.caller.name,
        reason=app_state.redactor.text(wanted.reason),
        **facts,
    )
