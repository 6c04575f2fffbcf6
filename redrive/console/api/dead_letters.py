"""`/workflow-dlq`: lists and details of dead letters, and plans and commands for them.

The caller gives the commands, in the caller's tenant. With `REDRIVE_APPROVALS=on` an edit is carried out once another
admin has approved it.
"""

import asyncio
import contextlib
import hashlib
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field
from pydantic_core import to_json

from redrive.access import Principal, Right
from redrive.client import Redrive
from redrive.console.api.answers import CommandBody, Listed, Versions, accepted, etag, identity, refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Operator, Reader, Scope
from redrive.console.problems import Refusal
from redrive.contracts import NAME_PATTERN, Message
from redrive.dead_letter_client import Plan
from redrive.dead_letters import (
    REASON_LIMIT,
    Answer,
    Discard,
    LetterCommand,
    LetterFilter,
    LetterState,
    Replay,
    ReplayOptions,
    Resolve,
    Restart,
    refusal,
)
from redrive.documents import changed_paths
from redrive.errors import CommandRefused, RunNotFound, Unavailable, VersionChanged
from redrive.postgres.paging import LARGEST_PAGE, Total
from redrive.postgres.tenancy import Pool, transaction
from redrive.redaction.redactor import Redactor
from redrive.store.approvals import ApprovalRequest, ask_approval, use_approval
from redrive.store.dead_letters.commands import first_answer
from redrive.store.dead_letters.figures import groups as letter_groups
from redrive.store.dead_letters.figures import stats as letter_stats
from redrive.store.dead_letters.lists import audit_trail, find_letter, list_letters, open_siblings, total
from redrive.store.dead_letters.models import AuditEntry, LetterGroup, LetterRecord, LetterRow, LetterStats

router = APIRouter(prefix="/workflow-dlq", tags=["dead letters"])
_IDENTITY: Final = {"request_id", "requested_by", "reason"}
command_router = APIRouter(prefix="/workflow-dlq/{letter_id}", tags=["dead letters"])
_REFUSALS = refusals(400, 404, 409, 412, 413, 415)


class LetterQuery(LetterFilter):
    """Which dead letters. `Scope` reads the tenant; the field allows it in the query."""

    tenant: str | None = Field(default=None, pattern=NAME_PATTERN, description="for owners: only this tenant")


class LetterPageQuery(LetterQuery):
    """Which dead letters, and which page of them."""

    limit: int = Field(default=50, ge=1, le=LARGEST_PAGE)
    cursor: str | None = None


class Letters(Listed):
    """A page of dead letters."""

    dead_letters: list[LetterRow]
    total: Total | None = Field(description="how many fit; none for a search by text")


class LetterGroupQuery(LetterQuery):
    """Which dead letters to group, and how many groups."""

    limit: int = Field(default=20, ge=1, le=LARGEST_PAGE)


class Groups(Message):
    """The largest groups of similar open dead letters."""

    groups: list[LetterGroup]


class LetterDetail(LetterRecord):
    """A dead letter with its history. The payload is redacted, and only for those who may see payloads."""

    commands: list[str] = Field(description="what it takes now")
    home_problem: str | None = Field(description="why its run is not in this Temporal, and what to do")
    payload_hidden: bool
    audit: list[AuditEntry]
    links: dict[str, str]


@router.get("", responses=refusals(400))
async def dead_letters(
    app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[LetterPageQuery, Query()]
) -> Letters:
    """List dead letters, the newest failure first."""
    pool, chosen = await app_state.pool(), choice.within(tenant)
    page = await list_letters(pool, chosen, choice.limit, choice.cursor)
    return Letters(dead_letters=page.rows, cursor=page.cursor, total=await total(pool, chosen))


@router.get("/groups", responses=refusals(400))
async def groups(
    app_state: TheAppState, _caller: Reader, tenant: Scope, choice: Annotated[LetterGroupQuery, Query()]
) -> Groups:
    """List groups of similar open dead letters, the largest first."""
    return Groups(groups=await letter_groups(await app_state.pool(), choice.within(tenant), choice.limit))


@router.get("/stats", responses=refusals())
async def stats(app_state: TheAppState, _caller: Reader, tenant: Scope) -> LetterStats:
    """Return how many dead letters there are, the age of the oldest, and what they are about."""
    return await letter_stats(await app_state.pool(), tenant)


@router.get("/{letter_id}", responses=refusals(400, 404))
async def dead_letter(
    app_state: TheAppState, caller: Reader, tenant: Scope, letter_id: str, response: Response
) -> LetterDetail:
    """Show a dead letter with its history. Its ETag is for a command's If-Match."""
    pool = await app_state.pool()
    record = await find_letter(pool, tenant, letter_id)
    hidden = not caller.may(Right.PAYLOADS)
    problem = None if record.status.closed else await app_state.home_problem()
    response.headers["ETag"] = etag(record.version)
    return LetterDetail(
        **dict(record) | {"payload": None if hidden else record.payload},
        commands=record.possible_commands(problem),
        home_problem=problem,
        payload_hidden=hidden,
        audit=await audit_trail(pool, record.tenant, record.id),
        links=app_state.links(caller, run=record.run_id),
    )


def is_edit(command: LetterCommand) -> bool:
    """Tell whether a command puts in the operator's own data: an edited input, or an output."""
    return isinstance(command, Resolve) or (isinstance(command, Replay) and command.input_patch is not None)


def plan_hash(record: LetterRecord, command: LetterCommand) -> str:
    """Return the hash of this command to this version of a dead letter, whoever gives it and why."""
    document = {
        "letter": record.id,
        "version": record.version,
        "command": command.model_dump(mode="json", exclude=_IDENTITY),
    }
    return hashlib.sha256(to_json(_sorted(document))).hexdigest()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


async def is_approved(pool: Pool, record: LetterRecord, command: LetterCommand) -> bool:
    """Use another admin's approval of an edit; False if there is none to use."""
    async with transaction(pool, record.tenant) as connection:
        by = await use_approval(connection, record.tenant, plan_hash(record, command), command.request_id)
    return by is not None


async def check_approval(
    pool: Pool, redactor: Redactor, record: LetterRecord, command: LetterCommand, caller: Principal
) -> None:
    """Use another admin's approval of an edit; without one, ask for it and refuse."""
    if await is_approved(pool, record, command):
        return
    named = plan_hash(record, command)
    asking = ApprovalRequest(
        about=record.letter,
        plan_hash=named,
        plan=await redactor.value_aside(command.model_dump(mode="json", exclude=_IDENTITY, exclude_none=True)),
        reason=redactor.text(command.reason),
        requested_by=caller.name,
        person=caller.person,
    )
    await ask_approval(pool, asking)
    raise Refusal(
        409,
        "approval_needed",
        f"the edit of {record.id} waits for another admin, as plan {named}",
        f"another admin approves it within an hour with POST /api/v1/approvals/{named}; then either of you starts it "
        f"with POST /api/v1/approvals/{named}/start, or send this request again",
    )


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

    output: Any = Field(description="what the step returns: for a module, an object that fits its output model")


class PlanView(Plan):
    """What a replay would do, and why it would be refused, if that is known."""

    edited: list[str] = Field(description="fields of the input that change")
    refusal: str | None
    version: int
    hash: str = Field(description="names this very replay of this very record")
    needs_approval: bool


@command_router.post("/plan", responses=refusals(400, 404, 413, 415))
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


@command_router.post("/replay", status_code=202, responses=_REFUSALS)
async def replay(app_state: TheAppState, caller: Operator, aim: Aimed, wanted: ReplayBody) -> Answer:
    """Run the dead step again: the same run continues in place, with the outputs of earlier steps."""
    command = Replay(**identity(caller, wanted), **wanted.options)
    return await _give(app_state, caller, aim, command)


@command_router.post("/resolve", status_code=202, responses=_REFUSALS)
async def resolve(app_state: TheAppState, caller: Operator, aim: Aimed, wanted: ResolveBody) -> Answer:
    """Close a dead letter with an output: the run continues as if the step had returned it."""
    command = Resolve(**identity(caller, wanted), output=wanted.output)
    return await _give(app_state, caller, aim, command)


@command_router.post("/ignore", status_code=202, responses=_REFUSALS)
@command_router.post("/discard", status_code=202, responses=_REFUSALS)
async def discard(app_state: TheAppState, caller: Operator, aim: Aimed, wanted: CommandBody) -> Answer:
    """Discard a dead letter: its run ends FAILED. `ignore` is an alias."""
    command = Discard(**identity(caller, wanted))
    return await _give(app_state, caller, aim, command)


@command_router.post("/restart", status_code=202, responses=_REFUSALS)
async def restart(app_state: TheAppState, caller: Operator, aim: Aimed, wanted: CommandBody) -> Answer:
    """Start a new run from the dead step on, if the run itself is gone."""
    command = Restart(**identity(caller, wanted))
    return await _give(app_state, caller, aim, command)


@command_router.post("/reset", status_code=202, responses=_REFUSALS)
async def reset(app_state: TheAppState, caller: Operator, aim: Aimed, wanted: CommandBody) -> Answer:
    """Reset a workflow that is no pipeline run to before what failed: a new run does everything since then again.

    The old run ends as terminated, and whoever waits for its result is told so; its other dead letters are closed.
    """
    given = identity(caller, wanted)
    earlier = await _earlier_answer(app_state, aim, given["request_id"])
    if earlier:
        return earlier
    event, letters = aim.record.reset_event(), (await app_state.redrive()).dead_letters
    answer = accepted(await letters.reset(aim.record.letter, event, **given))
    reason = f"its workflow was reset: {given['reason']}"[:REASON_LIMIT]
    others = await open_siblings(await app_state.pool(), aim.record.letter)
    await asyncio.gather(
        *(letters.discard(other, requested_by=given["requested_by"], reason=reason) for other in others)
    )
    return answer


async def _earlier_answer(app_state: AppState, aim: Aim, request_id: str) -> Answer | None:
    """Return the answer to a command that is repeated; None: it is new, and the record is as its sender saw it."""
    record = aim.record
    # A command that is repeated, because its answer was lost, has changed the record itself.
    earlier = await first_answer(await app_state.pool(), record.letter, request_id)
    if earlier:
        return accepted(earlier)
    if aim.versions is not None and str(record.version) not in aim.versions:
        raise VersionChanged("dead letter", status=record.status, version=str(record.version))
    return None


async def _give(app_state: AppState, caller: Principal, aim: Aim, command: LetterCommand) -> Answer:
    earlier = await _earlier_answer(app_state, aim, command.request_id)
    if earlier:
        return earlier
    record, pool = aim.record, await app_state.pool()
    if app_state.settings.approvals and is_edit(command):
        await _check_values(await app_state.redrive(), record, command)
        await check_approval(pool, app_state.redactor, record, command, caller)
    return accepted(await (await app_state.redrive()).dead_letters.send(record.letter, command))


async def _check_values(redrive: Redrive, record: LetterRecord, command: LetterCommand) -> None:
    """Refuse values that the step would not take, as far as that is known: approved, they could not be sent."""
    what, problem = "", None
    if isinstance(command, Resolve):
        what, problem = "output", await redrive.output_problem(record.letter, command.output)
    elif isinstance(command, Replay):
        # Otherwise the answer to the command says why it is not possible.
        with contextlib.suppress(RunNotFound, Unavailable):
            what, problem = "edited input", (await redrive.check_edit(record.letter, command)).refusal
    if problem:
        raise CommandRefused(f"refused: the {what} does not fit: {problem}")
