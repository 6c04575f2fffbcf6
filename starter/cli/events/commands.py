"""`redrive events replay` and `discard`: commands about events, with the options of the replay script.

A replay goes from the options to the answers: the selection, the confirmation, commands, progress.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from redrive import Redrive
from redrive.bridges.events.replays import EventReplays, Replayed, make_replays
from redrive.bridges.events.settings import EventSettings
from redrive.connection import connect_temporal, database_url
from redrive.dead_letters import Discard, Replay
from redrive.errors import CommandRefused, EventNotFound
from redrive.postgres.database import Database
from redrive.postgres.paging import LARGEST_PAGE
from redrive.postgres.tenancy import Pool
from redrive.settings import read_environment, read_settings
from redrive.starter.cli.command_options import AssignTo, Giving, GivingReplay, Reason, finish
from redrive.starter.cli.dead_letters.commands import replay_letter
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.cli.messages import command_message
from redrive.starter.cli.records import database_errors, open_records
from redrive.starter.cli.runs.progress import wait_for_run
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.sdk import connect_to_change
from redrive.starter.cli.terminal import confirm, console, plain
from redrive.store.broker_records import whole_id
from redrive.store.events.dead import DeadEventFilter, DeadEventStatus, discard, get_dead_event, list_dead_events
from redrive.store.events.records import failed_projections
from redrive.store.messages.dead import PREFIX, parse_id

Action = Callable[[], Awaitable[list[Replayed]]]
DEAD_EVENT = "dead-event-"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EventSelection:
    """What to replay: one event, one dead event, or all that failed up to a limit."""

    dlq: Annotated[bool, Parameter(help="Replay what is in the dead letter queue.")] = False
    letter: Annotated[
        str | None,
        Parameter(
            name="--id", help="The id of a dead event, dead message or dead letter, or a run and step as `run-…/step`."
        ),
    ] = None
    status: Annotated[
        Literal["failed", "pending"] | None,
        Parameter(
            help="`failed`: projectors that failed for good; with --dlq `pending`: messages that could not become a "
            "run."
        ),
    ] = None
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=LARGEST_PAGE), help="Maximum number of rows.")] = 100
    event_id: Annotated[
        str | None, Parameter(help="Replay this event: its failed projectors, or all if none failed.")
    ] = None
    projectors: Annotated[
        str | None, Parameter(help="Only these projectors, separated by commas; the others are not touched.")
    ] = None
    tenant: Annotated[str | None, Parameter(help="Only what belongs to this tenant.")] = None
    assign_to: AssignTo = None

    @property
    def dead_id(self) -> str | None:
        """The one that was chosen from the dead letter queue."""
        return self.letter if self.dlq else None

    @property
    def dead(self) -> bool:
        """Tell whether all pending dead events were chosen."""
        return self.dlq and self.status == "pending"

    @property
    def projector_names(self) -> tuple[str, ...]:
        """The projectors to run; none: those that failed."""
        return tuple(name.strip() for name in (self.projectors or "").split(",") if name.strip())

    def check(self, *, wait: bool) -> None:
        """Raise unless exactly one way to choose was used, with the options that go with it."""
        if self.assign_to and not self.dead_id:
            raise WrongUsage("--assign-to goes with one dead event or dead message: --dlq --id ID")
        failed = not self.dlq and self.status == "failed"
        is_one = bool(self.dead_id or self.event_id)
        is_mixed = (self.letter and not self.dlq) or (self.projector_names and not self.event_id)
        ways = sum((bool(self.dead_id), self.dead, failed, bool(self.event_id)))
        if ways != 1 or is_mixed or (self.status and is_one):
            raise WrongUsage(
                "say what to replay: --status failed, or --event-id ID [--projectors a,b], or --dlq --id ID, "
                "or --dlq --status pending"
            )
        if wait and not is_one:
            raise WrongUsage("--wait goes with one event: --event-id ID or --dlq --id ID")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EventReplay(GivingReplay):
    """How events are replayed. The replay script needs no reason."""

    reason: Reason = "events replay"
    dry_run: Annotated[bool, Parameter(help="Print what would be done and change nothing.")] = False
    wait: Annotated[bool, Parameter(help="Show progress until the run has ended; for one event.")] = False


NOTHING, USUAL = EventSelection(), EventReplay()


async def replay_events(chosen: EventSelection, command: Replay, how: Giving) -> None:
    """Replay the selection, or show what that would be."""
    settings = read_settings()
    client = await connect_temporal(settings)
    async with await connect_to_change(settings) as redrive, Database(database_url(settings), max_size=4) as database:
        with database_errors():
            replays = make_replays(client, redrive, database, settings, read_environment(EventSettings))
            actions = await _actions(chosen, command, replays, await database.pool())
            if how.dry_run:
                _print_plan(actions, json=how.json)
                return
            if actions:
                confirm(f"Replay {_what(actions)}?", yes=how.yes)
            answers = await _carry_out(actions, quiet=how.json)
        await _finish(redrive, answers, how)


async def _actions(chosen: EventSelection, command: Replay, replays: EventReplays, pool: Pool) -> dict[str, Action]:
    """Return what to do, by the name under which it is shown."""
    if chosen.event_id:
        event_id = await whole_id(pool, chosen.tenant, "events", chosen.event_id)
        return {event_id: lambda: replays.event(chosen.tenant, event_id, chosen.projector_names, command)}
    if chosen.dead_id:
        dead_id = await whole_id(pool, chosen.tenant, "dead_events", chosen.dead_id)
        return {dead_id: _dead_action(replays, pool, chosen.tenant, dead_id, command, assign_to=chosen.assign_to)}
    if chosen.dead:
        page = await list_dead_events(
            pool, DeadEventFilter(tenant=chosen.tenant, status=DeadEventStatus.PENDING, assigned=True), chosen.limit
        )
        return {row.id: _dead_action(replays, pool, row.tenant, row.id, command) for row in page.rows}
    records = await failed_projections(pool, chosen.tenant, chosen.limit)

    def action(index: int) -> Action:
        async def act() -> list[Replayed]:
            return [await replays.projection(records[index], command)]

        return act

    return {f"{record.event_id} {record.projector}": action(index) for index, record in enumerate(records)}


def _dead_action(
    replays: EventReplays,
    pool: Pool,
    tenant: str | None,
    dead_id: str,
    command: Replay,
    *,
    assign_to: str | None = None,
) -> Action:
    async def act() -> list[Replayed]:
        answer = await replays.dead_event(tenant, dead_id, command, assign_to=assign_to)
        record = await get_dead_event(pool, tenant, dead_id)
        run_id = record.run_id if record else None
        return [Replayed(id=dead_id, run_id=run_id, accepted=answer.accepted, message=answer.message)]

    return act


async def _carry_out(actions: dict[str, Action], *, quiet: bool) -> list[Replayed]:
    answers: list[Replayed] = []
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("replaying", total=len(actions))
        for act in actions.values():
            found = await act()
            answers.extend(found)
            progress.advance(task)
            if not quiet:
                for answer in found:
                    _print_answer(answer, progress)
    return answers


def _print_answer(answer: Replayed, progress: Progress) -> None:
    mark = "replayed" if answer.accepted else "refused"
    names = f" {','.join(answer.projectors)}" if answer.projectors else ""
    progress.console.print(plain(f"{answer.id}{names}  {mark}: {answer.message}"), soft_wrap=True)


def _what(actions: dict[str, Action]) -> str:
    return next(iter(actions)) if len(actions) == 1 else f"{len(actions)} of them"


def _print_plan(actions: dict[str, Action], *, json: bool) -> None:
    if json:
        print_json({"dry_run": True, "would_replay": list(actions)})
        return
    for name in actions:
        console.print(name, markup=False)
    console.print(f"a dry run: nothing was changed; {len(actions)} would be replayed")


async def _finish(redrive: Redrive, answers: list[Replayed], how: Giving) -> None:
    refused = [answer for answer in answers if not answer.accepted]
    run_ids = [answer.run_id for answer in answers if answer.accepted and answer.run_id]
    if how.wait and run_ids and not refused:
        await wait_for_run(redrive, run_ids[-1], json=how.json, answer=[answer.model_dump() for answer in answers])
        return
    if how.json:
        print_json({"replayed": answers, "accepted": len(answers) - len(refused), "refused": len(refused)})
    else:
        console.print(f"{len(answers) - len(refused)} replayed, {len(refused)} refused")
    if refused:
        raise CommandRefused(
            f"refused: {refused[0].message}" + (f" (and {len(refused) - 1} more)" if refused[1:] else "")
        )


async def replay(*, chosen: EventSelection = NOTHING, how: EventReplay = USUAL) -> None:
    """Replay events: from the stored payload, with their dedupe key.

    **Examples**

    `redrive events replay --status failed --limit 100` runs projectors that failed for good again, the oldest first;
    each in its own run, which continues.

    `redrive events replay --event-id event-… --projectors qscore,service-session` runs just these projectors again.

    `redrive events replay --dlq --id dead-event-…` tries again to make a run of a message; with the id of a dead
    letter it is `redrive dlq replay`, with that of a dead message `redrive messages replay`. `--dlq --status pending
    --limit 100` takes messages that could not become a run in bulk.
    """
    command, dead_id = how.command(Replay), chosen.dead_id
    if dead_id is not None and (parse_id(dead_id) or dead_id.startswith(PREFIX)):
        await command_message(dead_id, chosen.tenant, command, how, chosen.assign_to)
    elif dead_id is not None and not dead_id.startswith(DEAD_EVENT):
        await replay_letter(dead_id, command, how)
    else:
        chosen.check(wait=how.wait)
        await replay_events(chosen, command, how)


async def discard_event(dead_id: Annotated[str, Parameter(name="ID")], /, *, how: Giving) -> None:
    """Discard a message that could not become a run. Its record stays; it can no longer be replayed.
    `redrive events ignore` is an alias.

    **Example**

    `redrive events discard dead-event-… --reason "a producer's test"`

    Parameters
    ----------
    dead_id
        The dead event's id, or a beginning of it that no other has; `redrive events dead` shows them.
    """
    command = how.command(Discard)
    async with open_records(read_settings()) as pool:
        found = await get_dead_event(pool, None, await whole_id(pool, None, "dead_events", dead_id))
        if found is None:
            raise EventNotFound(f"no dead event has the id {dead_id[:200]!r}; `redrive events dead` shows them")
        confirm(f"Discard {found.id}?", yes=how.yes)
        answer = await discard(pool, found, command)
    finish(answer, json=how.json)
