"""Dead letters: groups, the list, and one with its cause, history and commands."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import Request, Response
from pydantic import BeforeValidator, ConfigDict

from redrive.access import Principal, Right
from redrive.categories import Category
from redrive.console.api.approvals import is_whole
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import Reader, Scope
from redrive.console.web.charts import strip
from redrive.console.web.render import show
from redrive.console.web.routes import list_url, moment, page_router, query_of, read_query
from redrive.dead_letters import MAX_REPLAYS, LetterFilter, LetterStatus, Verb
from redrive.field_types import Moment
from redrive.policy import RetryPolicy
from redrive.store.approvals import Approval, list_approvals
from redrive.store.dead_letters.figures import GROUP_DEPTH, groups, letter_places, status_counts
from redrive.store.dead_letters.lists import audit_trail, find_letter, list_letters
from redrive.store.dead_letters.models import AuditEntry, LetterRecord

router = page_router()
PAGE: Final = 50
_GROUPS: Final = 50


class LettersQuery(LetterFilter):
    """The query of the dead letters' page."""

    model_config = ConfigDict(extra="ignore")

    view: Literal["groups", "list"] = "groups"
    since: Annotated[Moment | None, BeforeValidator(moment)] = None
    cursor: str | None = None


@router.get("/dead-letters")
@router.get("/app/admin/dlq")
async def dead_letters(request: Request, app_state: TheAppState, caller: Reader, tenant: Scope) -> Response:
    """Show dead letters: grouped by similarity, or one by one."""
    asked = read_query(LettersQuery, request)
    pool = await app_state.pool()
    counts, places = await asyncio.gather(status_counts(pool, tenant), letter_places(pool, tenant))
    values: dict[str, Any] = {
        "asked": asked,
        "query": query_of(request),
        "counts": counts,
        "categories": list(Category),
        "pipelines": _offered((pipeline for pipeline, _ in places), asked.pipeline),
        "steps": _offered((step for at, step in places if asked.pipeline in {None, at}), asked.step),
        "tenant": tenant,
        "url": list_url(request),
        "chosen": _chosen(request, asked),
    }
    if asked.view == "list" or asked.text:
        return await _list(request, app_state, caller, asked, values)
    return await _groups(request, app_state, caller, asked, values)


def _offered(known: Iterable[str], asked: str | None) -> list[str]:
    """Return the choices of a filter: what there is, and what was asked for."""
    return sorted({*known, *([asked] if asked else [])})


async def _groups(
    request: Request, app_state: AppState, caller: Principal, asked: LettersQuery, values: dict[str, Any]
) -> Response:
    chosen = asked.within(values["tenant"]).model_copy(update={"status": None})
    found = await groups(await app_state.pool(), chosen, _GROUPS)
    counts = values["counts"]
    return show(
        request,
        caller,
        "groups.html",
        groups=found,
        total=sum(group.count for group in found),
        is_cut=len(found) == _GROUPS,
        is_deep=counts[LetterStatus.PENDING] + counts[LetterStatus.REPLAYING] > GROUP_DEPTH,
        depth=GROUP_DEPTH,
        **values,
    )


async def _list(
    request: Request, app_state: AppState, caller: Principal, asked: LettersQuery, values: dict[str, Any]
) -> Response:
    page = await list_letters(await app_state.pool(), asked.within(values["tenant"]), PAGE, asked.cursor)
    older = values["url"](view="list", cursor=page.cursor, **_since(asked)) if page.cursor else None
    return show(request, caller, "letters.html", rows=page.rows, older=older, **values)


def _since(asked: LettersQuery) -> dict[str, str]:
    """Return the moment of a time span before now: the next page must use the same one."""
    return {"since": asked.since.isoformat()} if asked.since else {}


def _chosen(request: Request, asked: LettersQuery) -> dict[str, str]:
    """Return the filters only, for a command on all matches."""
    fields = {name: value for name, value in query_of(request).items() if name not in {"view", "status", "cursor"}}
    return fields | _since(asked)


@router.get("/dead-letters/{letter_id}")
@router.get("/app/admin/dlq/{letter_id}")
async def dead_letter(
    request: Request, app_state: TheAppState, caller: Reader, tenant: Scope, letter_id: str
) -> Response:
    """Show one dead letter: its cause, its history, its input, and the possible commands."""
    pool = await app_state.pool()
    record = await find_letter(pool, tenant, letter_id)
    trail = await audit_trail(pool, record.tenant, record.id)
    problem = None if record.status.closed else await app_state.home_problem()
    return show(
        request,
        caller,
        "letter.html",
        letter=record,
        trail=trail,
        cycles=[(entry, strip(entry.attempts)) for entry in reversed(record.failure_history)],
        commands=record.possible_commands(problem),
        home_problem=problem,
        approvals=[] if problem else await _approvals(app_state, record),
        links=app_state.links(caller, run=record.run_id),
        policy=_policy(record),
        replays_left=MAX_REPLAYS - record.replay_count,
        payload=record.payload if caller.may(Right.PAYLOADS) else None,
        is_omitted=is_omitted(record),
        outcome=_outcome(record, trail),
    )


def _outcome(record: LetterRecord, trail: Sequence[AuditEntry]) -> str:
    """Return what a closed dead letter's last command did, in a sentence; empty while it is open."""
    if record.letter.foreign:
        return _foreign_outcome(record)
    match record.status:
        case LetterStatus.REPLAYED:
            edited = any(((line.after or {}).get("command") or {}).get("edited") for line in trail)
            return "With an edited input the step succeeded." if edited else "The step succeeded."
        case LetterStatus.RESOLVED:
            restarted = record.resolution == Verb.RESTART
            return "A new run took its place." if restarted else "The run went on with the output that was given."
        case LetterStatus.DISCARDED:
            return "The run was canceled." if record.resolution == "run canceled" else "The run ended as failed."
        case LetterStatus.PENDING | LetterStatus.REPLAYING:
            return ""


def _foreign_outcome(record: LetterRecord) -> str:
    match record.status:
        case LetterStatus.REPLAYED:
            return "The workflow went on."
        case LetterStatus.RESOLVED:
            return "The workflow went on with the result that was given."
        case LetterStatus.DISCARDED if record.resolution == "run canceled":
            return "The workflow ended, or went on without it."
        case LetterStatus.DISCARDED if record.orphaned:
            return "Its workflow had ended."
        case LetterStatus.DISCARDED:
            return "The error was raised in the workflow, whose own code decided."
        case LetterStatus.PENDING | LetterStatus.REPLAYING:
            return ""


async def _approvals(app_state: AppState, record: LetterRecord) -> list[tuple[Approval, bool]]:
    """Return the edits that wait for another admin, or are approved and not used yet, and whether each is whole."""
    if not app_state.settings.approvals:
        return []
    found = await list_approvals(await app_state.pool(), record.tenant)
    return [(each, is_whole(each)) for each in found if each.dead_letter == record.id and each.used_for is None]


def is_omitted(record: LetterRecord) -> bool:
    """Tell whether the input was too large for the record."""
    return isinstance(record.payload, dict) and set(record.payload) == {"omitted"}


def _policy(record: LetterRecord) -> RetryPolicy | None:
    """Return the policy of the last cycle; None if another release wrote it in another form."""
    try:
        return RetryPolicy.model_validate(record.config)
    except ValueError:
        return None
