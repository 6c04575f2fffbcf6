"""`redrive dlq …`: show dead letters. The commands to them are in `commands.py`."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from cyclopts import App

from redrive.connection import stack_directory
from redrive.dead_letters import LetterFilter, LetterStatus
from redrive.errors import Unavailable
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings, read_settings
from redrive.starter.cli.command_options import FIRST_PAGE, Letter, PageOptions
from redrive.starter.cli.dead_letters.selection import LetterOptions
from redrive.starter.cli.dead_letters.views import letter_story, letters_table, stats_view, watched_line
from redrive.starter.cli.records import database_errors, find_story, named_letter, open_records
from redrive.starter.cli.runs.progress import INTERVAL, OUTAGE_TIMEOUT
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, console, errors
from redrive.starter.cli.times import page_cursor, read_page_cursor
from redrive.starter.stack.state import find_running
from redrive.store.dead_letters.figures import stats as letter_stats
from redrive.store.dead_letters.lists import list_letters
from redrive.store.dead_letters.models import LetterRecord, LetterRow

app = App(name="dlq", help="Dead letters: look at them, replay them, close them.")
app.command("redrive.starter.cli.dead_letters.commands:replay")
app.command("redrive.starter.cli.dead_letters.commands:resolve")
app.command("redrive.starter.cli.dead_letters.commands:discard", name=["discard", "ignore"])
app.command("redrive.starter.cli.dead_letters.commands:restart")


@app.command(name="list")
async def list_dead_letters(
    *,
    tenant: str | None = None,
    status: LetterStatus | None = None,
    chosen: LetterOptions | None = None,
    shown: PageOptions = FIRST_PAGE,
) -> None:
    """List dead letters, the newest failure first.

    **Examples**

    `redrive dlq list --status pending --pipeline order --since 2h`

    `redrive dlq list --text "card declined" --json | jq -r '.dead_letters[].id'`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    status
        Only those with this status.
    """
    place, now = read_page_cursor(shown.cursor, datetime.now(UTC))
    selection = (chosen or LetterOptions()).selection(now)
    wanted = LetterFilter(tenant=tenant, status=status, **dict(selection))
    async with open_records(read_settings()) as pool:
        page = await list_letters(pool, wanted, shown.limit, place)
    following = page_cursor(page.cursor, now) if page.cursor else None
    if shown.json:
        print_json({"dead_letters": page.rows, "cursor": following})
    else:
        _print_page(page.rows, following)


def _print_page(rows: Sequence[LetterRow], following: str | None) -> None:
    if rows:
        console.print(letters_table(rows))
    else:
        errors.print("no dead letters" + (" on this page" if following else ""))
    if following:
        errors.print(f"there are more: add --cursor {following}", markup=False)


@app.command
async def show(letter: Letter, /, *, json: Json = False) -> None:
    """Show a dead letter with its history: what failed, every cycle and attempt, the input, what was done about it.

    **Examples**

    `redrive dlq show dead-letter-run-01a1e2177540731697934191006e66dd-charge`

    `redrive dlq show run-01a1e2177540731697934191006e66dd/charge --json | jq .failure_history`
    """
    settings = read_settings()
    async with open_records(settings) as pool:
        record, trail = await find_story(pool, letter)
    links = web_links(settings, record.run_id, record.id)
    if json:
        print_json(record.model_dump(mode="json") | {"audit": trail, "links": links})
    else:
        console.print(letter_story(record, trail, links))


def web_links(settings: Settings, run_id: str, letter: str) -> dict[str, str]:
    """Return the links to the run and the dead letter in the Temporal Web UI, if the embedded stack has one."""
    info = find_running(stack_directory(settings))
    if info is None or info.web_ui is None or settings.temporal_address not in {None, info.temporal_address}:
        return {}
    place = f"{info.web_ui.rstrip('/')}/namespaces/{info.namespace}/workflows"
    return {"run in Temporal": f"{place}/{run_id}", "letter in Temporal": f"{place}/{letter}"}


@app.command
async def watch(letter: Letter, /, *, json: Json = False) -> None:
    """Follow a dead letter until it is closed: replayed, resolved or discarded. Ctrl-C stops watching.

    **Example**

    `redrive dlq watch run-01a1e2177540731697934191006e66dd/charge`
    """
    async with open_records(read_settings()) as pool:
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
            record = await _read_again(pool, record.id)
    if json:
        print_json(record)


async def _read_again(pool: Pool, letter: str) -> LetterRecord:
    """Read the record, however often the database must be asked."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + OUTAGE_TIMEOUT
    while True:
        try:
            with database_errors():
                return await named_letter(pool, letter)
        except Unavailable:
            if loop.time() > give_up:
                raise
        await asyncio.sleep(INTERVAL)


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
    async with open_records(read_settings()) as pool:
        found = await letter_stats(pool, tenant)
    if json:
        print_json(found.model_dump(mode="json") | {"open": found.open})
    else:
        console.print(stats_view(found))
