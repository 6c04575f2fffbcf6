"""Replays of events, from the options to the answers: the selection, the confirmation, commands, progress."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from redrive import Redrive
from redrive.bridges.events.replays import EventReplays, Replayed, make_replays
from redrive.bridges.events.settings import EventSettings
from redrive.connection import connect_temporal, database_url
from redrive.dead_letters import Replay
from redrive.errors import CommandRefused
from redrive.postgres.database import Database
from redrive.postgres.tenancy import Pool
from redrive.settings import read_environment, read_settings
from redrive.starter.cli.command_options import AnswerOptions
from redrive.starter.cli.records import database_errors
from redrive.starter.cli.runs.progress import wait_for_run
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import confirm, console, plain
from redrive.store.events.dead import DeadEventFilter, DeadEventStatus, get_dead_event, list_dead_events
from redrive.store.events.records import failed_projections

Action = Callable[[], Awaitable[list[Replayed]]]


@dataclass(frozen=True)
class EventSelection:
    """What to replay: one event, one dead event, or all that failed up to a limit."""

    dead_id: str | None
    dead: bool
    failed: bool
    event_id: str | None
    projectors: tuple[str, ...]
    tenant: str | None
    limit: int
    assign_to: str | None = None

    @property
    def count_of_ways(self) -> int:
        """How many selections were made; exactly one is valid."""
        return sum((bool(self.dead_id), self.dead, self.failed, bool(self.event_id)))

    @property
    def is_one(self) -> bool:
        """Tell whether one thing was chosen by its id."""
        return bool(self.dead_id or self.event_id)


async def replay_events(chosen: EventSelection, command: Replay, options: AnswerOptions) -> None:
    """Replay the selection, or show what that would be."""
    settings = read_settings()
    client = await connect_temporal(settings)
    async with await Redrive.connect(settings) as redrive, Database(database_url(settings), max_size=4) as database:
        with database_errors():
            replays = make_replays(client, redrive, database, settings, read_environment(EventSettings))
            actions = await _actions(chosen, command, replays, await database.pool())
            if options.dry_run:
                _print_plan(actions, json=options.json)
                return
            if actions:
                confirm(f"Replay {_what(actions)}?", yes=options.yes)
            answers = await _carry_out(actions, quiet=options.json)
        await _finish(redrive, answers, options)


async def _actions(chosen: EventSelection, command: Replay, replays: EventReplays, pool: Pool) -> dict[str, Action]:
    """Return what to do, by the name under which it is shown."""
    if chosen.event_id:
        event_id = chosen.event_id
        return {event_id: lambda: replays.event(chosen.tenant, event_id, chosen.projectors, command)}
    if chosen.dead_id:
        return {
            chosen.dead_id: _dead_action(
                replays, pool, chosen.tenant, chosen.dead_id, command, assign_to=chosen.assign_to
            )
        }
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


async def _finish(redrive: Redrive, answers: list[Replayed], options: AnswerOptions) -> None:
    refused = [answer for answer in answers if not answer.accepted]
    run_ids = [answer.run_id for answer in answers if answer.accepted and answer.run_id]
    if options.wait and run_ids and not refused:
        await wait_for_run(redrive, run_ids[-1], json=options.json, answer=[answer.model_dump() for answer in answers])
        return
    if options.json:
        print_json({"replayed": answers, "accepted": len(answers) - len(refused), "refused": len(refused)})
    else:
        console.print(f"{len(answers) - len(refused)} replayed, {len(refused)} refused")
    if refused:
        raise CommandRefused(
            f"refused: {refused[0].message}" + (f" (and {len(refused) - 1} more)" if refused[1:] else "")
        )
