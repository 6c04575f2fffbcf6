"""`redrive events replay` and `discard`: commands about events, with the options of the replay script."""

from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from redrive.dead_letters import Discard, Replay
from redrive.errors import EventNotFound
from redrive.postgres.paging import LARGEST_PAGE
from redrive.settings import read_settings
from redrive.starter.cli.command_options import AnswerOptions, AssignTo, By, Giving, RequestId, finish, made
from redrive.starter.cli.dead_letters.replays import replay_letter
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.cli.events.replays import EventSelection, replay_events
from redrive.starter.cli.messages import command_message
from redrive.starter.cli.records import open_records
from redrive.starter.cli.terminal import Json, Yes, confirm
from redrive.store.events.commands import discard
from redrive.store.events.dead import get_dead_event
from redrive.store.messages.dead import parse_id

DEAD_EVENT = "dead-event-"


async def replay(
    *,
    dlq: bool = False,
    letter: Annotated[str | None, Parameter(name="--id")] = None,
    status: Literal["failed", "pending"] | None = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=LARGEST_PAGE))] = 100,
    event_id: str | None = None,
    projectors: str | None = None,
    tenant: str | None = None,
    assign_to: AssignTo = None,
    reason: str = "events replay",
    by: By = None,
    request_id: RequestId = None,
    dry_run: bool = False,
    wait: bool = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Replay events: from the stored payload, with their dedupe key.

    **Examples**

    `redrive events replay --status failed --limit 100` runs projectors that failed for good again, the oldest first;
    each in its own run, which continues.

    `redrive events replay --event-id event-… --projectors qscore,service-session` runs just these projectors again.

    `redrive events replay --dlq --id dead-event-…` tries again to make a run of a message; with the id of a dead
    letter it is `redrive dlq replay`, with that of a dead message `redrive messages replay`. `--dlq --status pending
    --limit 100` takes messages that could not become a run in bulk.

    Parameters
    ----------
    dlq
        Replay what is in the dead letter queue.
    letter
        The id of a dead event, dead message or dead letter, or a run and step as `run-…/step`.
    status
        `failed`: projectors that failed for good; with --dlq `pending`: messages that could not become a run.
    limit
        Maximum number of rows.
    event_id
        Replay this event: its failed projectors, or all if none failed.
    projectors
        Only these projectors, separated by commas; the others are not touched.
    tenant
        Only what belongs to this tenant.
    reason
        Why; kept in the audit log.
    dry_run
        Print what would be done and change nothing.
    wait
        Show progress until the run has ended; for one event.
    """
    command = made(Replay, by=by, reason=reason, request_id=request_id)
    options = AnswerOptions(yes=yes, dry_run=dry_run, wait=wait, json=json)
    if dlq and letter is not None and parse_id(letter):
        await command_message(letter, tenant, command, options, assign_to)
        return
    if dlq and letter is not None and not letter.startswith(DEAD_EVENT):
        await replay_letter(letter, command, options)
        return
    names = tuple(name.strip() for name in (projectors or "").split(",") if name.strip())
    chosen = EventSelection(
        dead_id=letter if dlq else None,
        dead=dlq and status == "pending",
        failed=not dlq and status == "failed",
        event_id=event_id,
        projectors=names,
        tenant=tenant,
        limit=limit,
        assign_to=assign_to,
    )
    if assign_to and not chosen.dead_id:
        raise WrongUsage("--assign-to goes with one dead event or dead message: --dlq --id ID")
    if chosen.count_of_ways != 1 or (letter and not dlq) or (names and not event_id) or (status and chosen.is_one):
        raise WrongUsage(
            "say what to replay: --status failed, or --event-id ID [--projectors a,b], or --dlq --id ID, "
            "or --dlq --status pending"
        )
    if wait and not chosen.is_one:
        raise WrongUsage("--wait goes with one event: --event-id ID or --dlq --id ID")
    await replay_events(chosen, command, options)


async def discard_event(dead_id: Annotated[str, Parameter(name="ID")], *, how: Giving) -> None:
    """Discard a message that could not become a run. Its record stays; it can no longer be replayed.
    `redrive events ignore` is an alias.

    **Example**

    `redrive events discard dead-event-… --reason "a producer's test"`

    Parameters
    ----------
    dead_id
        The dead event's id; `redrive events dead` shows them.
    """
    command = how.command(Discard)
    async with open_records(read_settings()) as pool:
        found = await get_dead_event(pool, None, dead_id)
        if found is None:
            raise EventNotFound(f"no dead event has the id {dead_id[:200]!r}; `redrive events dead` shows them")
        confirm(f"Discard {dead_id}?", yes=how.yes)
        answer = await discard(pool, found, command)
    finish(answer, json=how.json)
