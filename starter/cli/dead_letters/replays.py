"""One replay, from the options to the answer: the plan, the confirmation, the command, the wait."""

from rich.table import Table

from redrive import Redrive
from redrive.dead_letter_client import Plan
from redrive.dead_letters import LetterState, LetterStatus, Replay, refusal
from redrive.documents import changed_paths
from redrive.errors import CommandRefused, RunNotFound
from redrive.postgres.tenancy import Pool
from redrive.settings import read_settings
from redrive.starter.cli.command_options import Giving, finish
from redrive.starter.cli.records import named_letter, open_records
from redrive.starter.cli.runs.progress import wait_for_run
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.sdk import connect_to_change
from redrive.starter.cli.terminal import confirm, console, errors, plain
from redrive.store.dead_letters.models import LetterRecord


async def replay_letter(letter: str, command: Replay, how: Giving) -> None:
    """Replay a dead letter, or show what that would do."""
    settings = read_settings()
    redrive = await connect_to_change(settings)
    async with open_records(settings) as pool:
        record = await named_letter(pool, letter)
        if how.dry_run:
            await _check(redrive, record, command)
            _print_plan(record, command, await _plan(redrive, record, command), json=how.json)
            return
        if not how.yes:
            plan = await _plan(redrive, record, command)
            errors.print(_plan_table(command, plan))
            confirm(f"Replay {record.id}?", yes=False)
        await _give(redrive, pool, record, command, how)


async def _give(redrive: Redrive, pool: Pool, record: LetterRecord, command: Replay, how: Giving) -> None:
    answer = await redrive.dead_letters.send(record.letter, command)
    if not (how.wait and answer.accepted):
        finish(answer, json=how.json)
        return

    async def begun() -> bool:
        return (await named_letter(pool, record.id)).status is not LetterStatus.REPLAYING

    if not how.json:
        finish(answer, json=False)
    await wait_for_run(redrive, record.run_id, json=how.json, begun=begun, answer=answer)


async def _check(redrive: Redrive, record: LetterRecord, command: Replay) -> None:
    """Say what would be refused, as far as that is known without sending the command."""
    state = LetterState(
        letter=record.letter, status=record.status, replays=record.replay_count, blocked_by=record.blocked_by
    )
    problem = refusal(state, command)
    if problem is None:
        try:
            ended = (await redrive.status(record.run_id)).status.closed
        except RunNotFound:
            problem = "the run is not in Temporal any more: its history cannot be read"
        else:
            problem = "the run has ended: `redrive dlq restart` starts a new run from this step" if ended else None
    if problem:
        raise CommandRefused(f"it would be refused: {problem}")


async def _plan(redrive: Redrive, record: LetterRecord, command: Replay) -> Plan:
    return await redrive.dead_letters.plan(record.letter, mode=command.mode, from_step=command.from_step)


def _print_plan(record: LetterRecord, command: Replay, plan: Plan, *, json: bool) -> None:
    if json:
        edits = {"edited": changed_paths(command.input_patch or {}), "policy": command.policy}
        print_json({"dry_run": True, "id": record.id, **plan.model_dump(), **edits})
    else:
        console.print(_plan_table(command, plan))
        console.print("a dry run: nothing was changed; the edit is checked when the command is given")


def _plan_table(command: Replay, plan: Plan) -> Table:
    table = Table(box=None, show_header=False)
    rows = {
        "reused": plan.reused,
        "run again": plan.run_again,
        "left for later": plan.left_for_later,
        "edited": changed_paths(command.input_patch or {}),
        "policy": [f"{name} {value}" for name, value in (command.policy or {}).items()],
    }
    for name, values in rows.items():
        table.add_row(name, plain(", ".join(values) or "none"))
    return table
