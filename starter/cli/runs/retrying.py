"""`redrive run retrying`: the steps in retry, from their rows in Postgres, and failing activities, from Temporal."""

from collections.abc import Sequence

from rich.text import Text

from redrive.settings import read_settings
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.activities import find_failing, print_failing
from redrive.starter.cli.runs.views import print_json, print_page, wait
from redrive.starter.cli.terminal import Listing
from redrive.store.runs import RetryingFilter, RetryingStep, list_retrying


async def print_retrying(tenant: str | None, limit: int, cursor: str | None, *, json: bool) -> None:
    """Print one page of the steps in retry; with the first one, failing activities of other workflows."""
    settings = read_settings()
    async with open_records(settings) as pool:
        page = await list_retrying(pool, RetryingFilter(tenant=tenant), limit, cursor)
    found = await find_failing(settings, tenant) if cursor is None else None
    if json:
        others = {"activities": found.activities, "looked_at": found.looked_at} if found else {}
        print_json({"retrying": page.rows, "cursor": page.cursor, **others})
        return
    none = "no step of a pipeline is tried again"
    print_page("retrying", page.rows, page.cursor, _table, none=none, json=False)
    if found:
        print_failing(found)


def _table(rows: Sequence[RetryingStep]) -> Listing:
    headers = ("run", "step", "pipeline", "tenant", "attempts", "next retry", "last error")
    table = Listing(*headers)
    for row in rows:
        attempts = f"{row.attempt} of {row.max_attempts}"
        error = Text(f"{row.category}: {row.error[:160]}")
        table.add_row(row.run_id, row.step, row.pipeline, row.tenant, attempts, wait(row.next_at), error)
    return table
