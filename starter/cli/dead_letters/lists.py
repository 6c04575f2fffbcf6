"""`redrive dlq …`: which dead letters are meant, and show them. The commands to them are in `commands.py`."""

import asyncio
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated
from urllib.parse import quote

from cyclopts import App, Parameter
from pydantic import ValidationError

from redrive.categories import Category
from redrive.connection import Addresses, read_addresses, stack_directory
from redrive.dead_letter_records import LetterFilter, LetterSelection, LetterStatus
from redrive.errors import InvalidInput
from redrive.home import home_problem
from redrive.postgres.tenancy import Pool
from redrive.starter.cli.dead_letters.views import letter_story, letters_table, stats_view, watched_line
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.cli.list_options import (
    FIRST_PAGE,
    Letter,
    PageOptions,
    page_cursor,
    parse_moment,
    read_page_cursor,
)
from redrive.starter.cli.records import database_errors, find_story, named_letter, open_records
from redrive.starter.cli.runs.views import print_json, print_page
from redrive.starter.cli.terminal import LABEL_HELP, Json, console
from redrive.starter.cli.waiting import INTERVAL, until_answered
from redrive.starter.stack.state import StackInfo, find_running
from redrive.store.dead_letters.figures import stats as letter_stats
from redrive.store.dead_letters.lists import list_letters
from redrive.store.dead_letters.models import LetterRecord

app = App(name="dlq")
app.command(
    "redrive.starter.cli.dead_letters.commands:replay", help="Run a dead step again; its run continues from there."
)
app.command(
    "redrive.starter.cli.dead_letters.commands:resolve", help="Close a dead letter with an output; its run continues."
)
app.command(
    "redrive.starter.cli.dead_letters.commands:discard",
    name=["discard", "ignore"],
    help="Discard a dead letter; its run ends FAILED.",
)
app.command(
    "redrive.starter.cli.dead_letters.commands:restart",
    help="Start a new run from the dead step on, if the run itself is gone.",
)
app.command(
    "redrive.starter.cli.dead_letters.commands:reset",
    help="Reset the workflow to before its failed activity, if it is not a run.",
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LetterOptions:
    """Which dead letters."""

    pipeline: Annotated[str | None, Parameter(help="Only those of this pipeline.")] = None
    module: Annotated[str | None, Parameter(help="Only those of this module.")] = None
    step: Annotated[str | None, Parameter(help="Only those of this step.")] = None
    category: Annotated[
        Category | None, Parameter(name_transform=str.lower, help="Only failures of this category.")
    ] = None
    fingerprint: Annotated[
        str | None, Parameter(help="Only similar failures; `redrive dlq stats` shows the fingerprints.")
    ] = None
    since: Annotated[
        str | None,
        Parameter(
            help="Only those whose last failure was since then: `2h`, `3d`, or a time such as `2026-05-01T10:00`."
        ),
    ] = None
    until: Annotated[str | None, Parameter(help="Only those whose last failure was before then.")] = None
    text: Annotated[
        str | None, Parameter(help="A run id, correlation id or idempotency key; or a part of the error's text.")
    ] = None
    label: Annotated[list[str] | None, Parameter(negative=(), help=LABEL_HELP)] = None
    letters: Annotated[
        list[str] | None,
        Parameter(name="--letter", negative=(), help="This dead letter, by its id; may be given several times."),
    ] = None

    def selection(self, now: datetime) -> LetterSelection:
        """Return the selection, or raise which option is wrong; durations count back from now."""
        given = {name: value for name, value in asdict(self).items() if name in LetterSelection.model_fields}
        given["label"] = ",".join(self.label) if self.label else None
        moments = {name: parse_moment(f"--{name}", given[name], now) for name in ("since", "until")}
        try:
            return LetterSelection(**given | moments)
        except ValidationError as error:
            # Here: only what is refused has to be redacted.
            from redrive.documents import validation_sentence  # noqa: PLC0415

            raise InvalidInput(validation_sentence(error)) from error


@app.command(name="list")
async def list_dead_letters(
    *,
    tenant: str | None = None,
    status: LetterStatus | None = None,
    all_: Annotated[bool, Parameter(name="--all")] = False,
    chosen: LetterOptions | None = None,
    shown: PageOptions = FIRST_PAGE,
) -> None:
    """List the open dead letters, the newest failure first.

    **Examples**

    `redrive dlq list --pipeline order --since 2h`

    `redrive dlq list --status replayed`

    `redrive dlq list --text "card declined" --json | jq -r '.dead_letters[].id'`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    status
        Those with this status, instead of the open ones.
    all_
        Those of every status.
    """
    place, now = read_page_cursor(shown.cursor, datetime.now(UTC))
    selection = (chosen or LetterOptions()).selection(now)
    if all_ and status:
        raise WrongUsage("give --all or --status, not both")
    only_open = not all_ and status is None
    wanted = LetterFilter(tenant=tenant, status=status, open=only_open, **dict(selection))
    async with open_records(read_addresses()) as pool:
        page = await list_letters(pool, wanted, shown.limit, place)
    following = page_cursor(page.cursor, now) if page.cursor else None
    print_page(
        "dead_letters",
        page.rows,
        following,
        letters_table,
        none="no open dead letters" if only_open else "no dead letters",
        json=shown.json,
    )


@app.command
async def show(letter: Letter, /, *, json: Json = False) -> None:
    """Show a dead letter with its history: what failed, every cycle and attempt, the input, what was done about it.

    **Examples**

    `redrive dlq show dead-letter-run-01a1e2177540731697934191006e66dd-charge`

    `redrive dlq show run-01a1e2177540731697934191006e66dd/charge --json | jq .failure_history`
    """
    servers = read_addresses()
    async with open_records(servers) as pool:
        record, trail = await find_story(pool, letter)
        problem = None if record.status.closed else await _home_problem(pool, servers)
    links = web_links(servers, record.run_id)
    if json:
        possible = {"commands": record.possible_commands(problem), "home_problem": problem}
        print_json(record.model_dump(mode="json") | possible | {"audit": trail, "links": links})
    else:
        console.print(letter_story(record, trail, links, problem))


async def _home_problem(pool: Pool, servers: Addresses) -> str | None:
    """Say that the records belong to another Temporal than this directory's stack; None if that is not known."""
    info = _used_stack(servers)
    if info is None or info.namespace_id is None:
        return None
    if servers.database_url not in {None, info.database_url.get_secret_value()}:
        return None
    return await home_problem(info.namespace_id, info.namespace, pool)


def web_links(servers: Addresses, run_id: str) -> dict[str, str]:
    """Return the link to the run in the Temporal Web UI, if the embedded stack has one."""
    info = _used_stack(servers)
    if info is None or info.web_ui is None:
        return {}
    place = f"{info.web_ui.rstrip('/')}/namespaces/{info.namespace}/workflows"
    return {"run in Temporal": f"{place}/{quote(run_id, safe='')}"}


def _used_stack(servers: Addresses) -> StackInfo | None:
    """Return this directory's stack, if it runs and no other Temporal is used."""
    info = find_running(stack_directory(servers))
    return info if info and servers.temporal_address in {None, info.temporal_address} else None


@app.command
async def watch(letter: Letter, /, *, json: Json = False) -> None:
    """Follow a dead letter until it is closed: replayed, resolved or discarded. Ctrl-C stops watching.

    **Example**

    `redrive dlq watch run-01a1e2177540731697934191006e66dd/charge`
    """
    async with open_records(read_addresses()) as pool:
        record = await named_letter(pool, letter)
        said = None
        while True:
            change = (record.status, record.cycle, record.orphaned, record.blocked_by)
            if change != said and not json:
                console.print(watched_line(record, datetime.now(UTC)), soft_wrap=True)
            said = change
            if record.status.closed:
                break
            await asyncio.sleep(INTERVAL)
            record = await until_answered(partial(_read_again, pool, record.id))
    if json:
        print_json(record)


async def _read_again(pool: Pool, letter: str) -> LetterRecord:
    with database_errors():
        return await named_letter(pool, letter)


@app.command
async def stats(*, tenant: str | None = None, json: Json = False) -> None:
    """Show how many dead letters there are, the age of the oldest, and the groups of similar ones.

    **Example**

    `redrive dlq stats --tenant acme`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    """
    async with open_records(read_addresses()) as pool:
        found = await letter_stats(pool, tenant)
    if json:
        print_json(found.model_dump(mode="json") | {"open": found.open})
    else:
        console.print(stats_view(found))
