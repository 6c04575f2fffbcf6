"""`/workflow-dlq/{id}/…`: plans and commands for dead letters. The caller gives them, in the caller's tenant."""

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends
from pydantic import Field

from redrive.access import Principal
from redrive.console.api.answers import CommandBody, Versions, accepted, identity, refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.approvals import check_approval, is_edit, plan_hash
from redrive.console.authentication import Operator, Reader, Scope
from redrive.dead_letter_client import Plan
from redrive.dead_letters import (
    Answer,
    Discard,
    LetterCommand,
    LetterState,
    Replay,
    ReplayOptions,
    Resolve,
    Restart,
    refusal,
)
from redrive.documents import changed_paths
from redrive.errors import VersionChanged
from redrive.store.dead_letters.commands import first_answer
from redrive.store.dead_letters.lists import find_letter
from redrive.store.dead_letters.models import LetterRecord

router = APIRouter(prefix="/workflow-dlq/{letter_id}", tags=["dead letters"])
_REFUSALS = refusals(400, 404, 409, 412, 413, 415)


class Aim(NamedTuple):
    """The dead letter of a command, and the versions of it that the command is valid for."""

    record: LetterRecord
    versions: frozenset[str] | None


async def aimed_at(app_state: TheAppState, tenant: Scope, letter_id: str, seen: Versions) -> Aim:
    """Return the target of a command."""
    return Aim(await find_letter(await app_state.pool(), tenant, letter_id), seen)


Aimed = Annotated[Aim, Depends(aimed_at)]


class ReplayBody(ReplayOptions, CommandBody):
    """Run the dead step again, in place."""


class ResolveBody(CommandBody):
    """Let the run continue as if the step had returned this."""

    output: dict[str, Any]


class PlanView(Plan):
    """What a replay would do, and why it would be refused, if that is known."""

    edited: list[str] = Field(description="fields of the input that change")
    refusal: str | None
    version: int
    hash: str = Field(description="names this very replay of this very record")
    needs_approval: bool


@router.post("/plan", responses=refusals(400, 404, 413, 415))
async def plan(
    app_state: TheAppState, caller: Reader, tenant: Scope, letter_id: str, options: ReplayOptions
) -> PlanView:
    """Show what a replay would do, without doing it: which steps are reused, which run again, which stay for later."""
    record = await find_letter(await app_state.pool(), tenant, letter_id)
    command = Replay(request_id="plan", requested_by=caller.name, reason="plan", **options.options)
    found = await (await app_state.redrive()).dead_letters.plan(
        record.letter, mode=options.mode, from_step=options.from_step
    )
    state = LetterState(
        letter=record.letter, status=record.status, replays=record.replay_count, blocked_by=record.blocked_by
    )
    return PlanView(
        **dict(found),
        edited=changed_paths(options.input_patch or {}),
        refusal=refusal(state, command),
        version=record.version,
        hash=plan_hash(record, command),
        needs_approval=app_state.settings.approvals and is_edit(command),
    )


@router.post("/replay", status_code=202, responses=_REFUSALS)
async def replay(app_state: TheAppState, caller: Operator, aim: Aimed, wanted: ReplayBody) -> Answer:
    """Run the dead step again: the same run continues in place, with the outputs of earlier steps."""
    command = Replay(**identity(caller, wanted), **wanted.options)
    return await _give(app_state, caller, aim, command)


@router.post("/resolve", status_code=202, responses=_REFUSALS)
async def resolve(app_state: TheAppState, caller: Operator, aim: Aimed, wanted: ResolveBody) -> Answer:
    """Close a dead letter with an output: the run continues as if the step had returned it."""
    command = Resolve(**identity(caller, wanted), output=wanted.output)
    return await _give(app_state, caller, aim, command)


@router.post("/ignore", status_code=202, responses=_REFUSALS)
@router.post("/discard", status_code=202, responses=_REFUSALS)
async def discard(app_state: TheAppState, caller: Operator, aim: Aimed, wanted: CommandBody) -> Answer:
    """Discard a dead letter: its run ends FAILED. `ignore` is an alias."""
    command = Discard(**identity(caller, wanted))
    return await _give(app_state, caller, aim, command)


@router.post("/restart", status_code=202, responses=_REFUSALS)
async def restart(app_state: TheAppState, caller: Operator, aim: Aimed, wanted: CommandBody) -> Answer:
    """Start a new run from the dead step on, if the run itself is gone."""
    command = Restart(**identity(caller, wanted))
    return await _give(app_state, caller, aim, command)


async def _give(app_state: AppState, caller: Principal, aim: Aim, command: LetterCommand) -> Answer:
    record, pool = aim.record, await app_state.pool()
    # A command that is repeated, because its answer was lost, has changed the record itself.
    earlier = await first_answer(pool, record.letter, command.request_id)
    if earlier:
        return accepted(earlier)
    if aim.versions is not None and str(record.version) not in aim.versions:
        raise VersionChanged("dead letter", status=record.status, version=str(record.version))
    if app_state.settings.approvals and is_edit(command):
        await check_approval(pool, app_state.redactor, record, command, caller)
    return accepted(await (await app_state.redrive()).dead_letters.send(record.letter, command))
