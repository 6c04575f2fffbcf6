"""`/workflow-dlq/{id}/…`: plans and commands for dead letters. The caller gives them, in the caller's tenant."""

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends
from pydantic import Field

from redrive.access import Principal
from redrive.console.api.answers import Ordering, Versions, accepted, identity, refusals
from redrive.console.app_state import Desk, TheDesk
from redrive.console.approvals import check_approval, is_edit, plan_hash
from redrive.console.authentication import Operator, Reader, Scope
from redrive.contracts import Message, Name
from redrive.dead_letter_client import Plan
from redrive.dead_letters import (
    Answer,
    Discard,
    LetterOrder,
    LetterState,
    Mode,
    Replay,
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


async def aimed_at(desk: TheDesk, tenant: Scope, letter_id: str, seen: Versions) -> Aim:
    """Return the target of a command."""
    return Aim(await find_letter(await desk.pool(), tenant, letter_id), seen)


Aimed = Annotated[Aim, Depends(aimed_at)]


class Manner(Message):
    """How to replay."""

    mode: Mode = Field(default=Mode.FROM_STEP, description="STEP_ONLY: the dead step alone; then the run waits")
    from_step: Name | None = Field(default=None, description="at or before the dead one; none: the dead one")
    input_patch: dict[str, Any] | None = Field(default=None, description="JSON Merge Patch on the step's input")
    policy: dict[str, Any] | None = Field(default=None, description="fields of the retry policy, for this cycle")


class ReplayOrder(Manner, Ordering):
    """Run the dead step again, in place."""


class ResolveOrder(Ordering):
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
async def plan(desk: TheDesk, caller: Reader, tenant: Scope, letter_id: str, manner: Manner) -> PlanView:
    """Show what a replay would do, without doing it: which steps are reused, which run again, which stay for later."""
    record = await find_letter(await desk.pool(), tenant, letter_id)
    order = Replay(request_id="plan", requested_by=caller.name, reason="plan", **dict(manner))
    found = await (await desk.redrive()).dead_letters.plan(record.letter, mode=manner.mode, from_step=manner.from_step)
    state = LetterState(
        letter=record.letter, status=record.status, replays=record.replay_count, blocked_by=record.blocked_by
    )
    return PlanView(
        **dict(found),
        edited=changed_paths(manner.input_patch or {}),
        refusal=refusal(state, order),
        version=record.version,
        hash=plan_hash(record, order),
        needs_approval=desk.settings.approvals and is_edit(order),
    )


@router.post("/replay", status_code=202, responses=_REFUSALS)
async def replay(desk: TheDesk, caller: Operator, aim: Aimed, wanted: ReplayOrder) -> Answer:
    """Run the dead step again: the same run continues in place, with the outputs of earlier steps."""
    manner = {name: getattr(wanted, name) for name in Manner.model_fields}
    order = Replay(**identity(caller, wanted), **manner)
    return await _give(desk, caller, aim, order)


@router.post("/resolve", status_code=202, responses=_REFUSALS)
async def resolve(desk: TheDesk, caller: Operator, aim: Aimed, wanted: ResolveOrder) -> Answer:
    """Close a dead letter with an output: the run continues as if the step had returned it."""
    order = Resolve(**identity(caller, wanted), output=wanted.output)
    return await _give(desk, caller, aim, order)


@router.post("/ignore", status_code=202, responses=_REFUSALS)
@router.post("/discard", status_code=202, responses=_REFUSALS)
async def discard(desk: TheDesk, caller: Operator, aim: Aimed, wanted: Ordering) -> Answer:
    """Discard a dead letter: its run ends FAILED. `ignore` is an alias."""
    order = Discard(**identity(caller, wanted))
    return await _give(desk, caller, aim, order)


@router.post("/restart", status_code=202, responses=_REFUSALS)
async def restart(desk: TheDesk, caller: Operator, aim: Aimed, wanted: Ordering) -> Answer:
    """Start a new run from the dead step on, if the run itself is gone."""
    order = Restart(**identity(caller, wanted))
    return await _give(desk, caller, aim, order)


async def _give(desk: Desk, caller: Principal, aim: Aim, order: LetterOrder) -> Answer:
    record, pool = aim.record, await desk.pool()
    # A command that is repeated, because its answer was lost, has changed the record itself.
    earlier = await first_answer(pool, record.letter, order.request_id)
    if earlier:
        return accepted(earlier)
    if aim.versions is not None and str(record.version) not in aim.versions:
        raise VersionChanged("dead letter", status=record.status, version=str(record.version))
    if desk.settings.approvals and is_edit(order):
        await check_approval(pool, desk.redactor, record, order, caller)
    return accepted(await (await desk.redrive()).dead_letters.order(record.letter, order))
