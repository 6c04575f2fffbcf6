"""`POST /runs` and `POST /runs/{id}/again`: start a run, or one like another with the same or an edited payload.

A start by a person, who gives a reason, is in the audit log before it happens; programs start runs without that write.
"""

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Header, Response
from pydantic import Field

from redrive.console.api.answers import CommandBody, refusals
from redrive.console.api.run_contents import read_document
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Scope, Starter
from redrive.console.problems import Place, Refusal
from redrive.contracts import DEFAULT_TENANT, Message, Name, RunInput, StartedRun, Text255
from redrive.dead_letters import Reason
from redrive.documents import changed_paths, merge_patch
from redrive.errors import InvalidInput
from redrive.field_types import HeaderText, Labels
from redrive.keys import check_identifiers, check_key, new_request_id, run_id_for_key
from redrive.store.runs import put_start_requested

router = APIRouter(prefix="/runs", tags=["runs"])
Key = Annotated[str | None, Header(alias="Idempotency-Key", description="the same key gives the same run")]
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": StartedRun, "description": "The key has a run already (`Idempotent-Replayed: true`)"}
}


class Start(Message):
    """A run to start. Its tenant is the caller's."""

    pipeline: Name
    payload: dict[str, Any] = Field(default_factory=dict)
    correlation_id: HeaderText | None = None
    user_id: HeaderText | None = None
    labels: Labels = Field(default_factory=dict, description="on every log line, span and dead letter of the run")
    reason: Reason | None = Field(default=None, description="why a person starts it; kept in the audit log")
    request_id: Text255 | None = Field(
        default=None, description="with a reason and without a key: the same id again is the same run"
    )


class AgainBody(CommandBody):
    """Start a new run of the same pipeline, with the payload of this one."""

    payload_patch: dict[str, Any] | None = Field(default=None, description="JSON Merge Patch on the payload")


class Who(NamedTuple):
    """Who starts a run, in which tenant (none: an owner named none), and under which key."""

    name: str
    tenant: str | None
    key: str | None


def starter(caller: Starter, tenant: Scope, key: Key = None) -> Who:
    """Return who starts a run, or refuse the key."""
    return Who(caller.name, tenant, None if key is None else _checked(key))


TheStarter = Annotated[Who, Depends(starter)]


@router.post("", status_code=201, responses=refusals(400, 413, 415) | _ANSWERS)
async def start(app_state: TheAppState, who: TheStarter, wanted: Start, response: Response) -> StartedRun:
    """Start a run. With an `Idempotency-Key` a second start returns the run of the first."""
    tenant, key = who.tenant or DEFAULT_TENANT, who.key
    if wanted.reason is not None:
        asked = CommandBody(reason=wanted.reason, request_id=wanted.request_id)
        await (await app_state.redrive()).steps(wanted.pipeline, wanted.payload)
        key = await _audited(app_state, who, tenant, asked, {"pipeline": wanted.pipeline})
    options = wanted.model_dump(include={"correlation_id", "user_id", "labels"})
    started = await _started(app_state, wanted.pipeline, wanted.payload, tenant, key=key, **options)
    return _answered(response, started)


class Repeated(NamedTuple):
    """A run that is to be repeated."""

    run_id: str
    run: RunInput


async def repeated(app_state: TheAppState, who: TheStarter, run_id: str) -> Repeated:
    """Return the run to repeat. One of an event is replayed with its event, which records its projectors."""
    run = await read_document(app_state, who.tenant, run_id)
    if run.event_id is not None:
        action = f"POST /api/v1/stored-events/{run.event_id}/replay"
        raise Refusal(409, "run_of_an_event", f"run {run_id!r} is of event {run.event_id}", action)
    return Repeated(run_id, run)


@router.post("/{run_id}/again", status_code=201, responses=refusals(400, 404, 409, 413, 415) | _ANSWERS)
async def again(
    app_state: TheAppState,
    who: TheStarter,
    found: Annotated[Repeated, Depends(repeated)],
    wanted: AgainBody,
    response: Response,
) -> StartedRun:
    """Start a new run with the payload of this one, as it is or edited. It has its own id, key and steps."""
    run, patch = found.run, wanted.payload_patch or {}
    payload = merge_patch(run.payload, patch)
    await (await app_state.redrive()).steps(run.pipeline, payload)
    facts = {"pipeline": run.pipeline, "again": found.run_id, "edited": changed_paths(patch)}
    key = await _audited(app_state, who, run.tenant, wanted, facts)
    options = {"correlation_id": run.correlation_id, "user_id": run.user_id, "labels": run.labels}
    return _answered(response, await _started(app_state, run.pipeline, payload, run.tenant, key=key, **options))


async def _audited(app_state: AppState, who: Who, tenant: str, asked: CommandBody, facts: dict[str, Any]) -> str:
    """Record that a person starts a run, and return its key: the one given, or one that the request's id makes."""
    check_identifiers(request_id=asked.request_id)
    used = who.key or check_key(f"by-hand:{asked.request_id or new_request_id()}")
    await put_start_requested(
        await app_state.pool(),
        tenant=tenant,
        # The run of a key that was reset has another id: only the key tells which one it is.
        run_id=None if who.key else run_id_for_key(tenant, used),
        actor=who.name,
        reason=app_state.redactor.text(asked.reason),
        facts=facts | {"key": app_state.redactor.text(used)},
    )
    return used


async def _started(
    app_state: AppState, pipeline: str, payload: dict[str, Any], tenant: str, **options: Any
) -> StartedRun:
    await app_state.tenant_limits.start(tenant)
    return await (await app_state.redrive()).start(pipeline, payload, tenant=tenant, **options)


def _answered(response: Response, started: StartedRun) -> StartedRun:
    response.headers["Location"] = f"/api/v1/runs/{started.run_id}"
    if started.is_cached:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    return started


def _checked(key: str) -> str:
    try:
        return check_key(key)
    except InvalidInput as error:
        place = Place(place="header.Idempotency-Key", problem=str(error))
        raise Refusal(
            400, "bad_key", f"header.Idempotency-Key: {error}", "take 1 to 255 visible characters", places=[place]
        ) from None
