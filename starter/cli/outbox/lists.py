"""`redrive outbox list` and `show`: rows of an outbox, as tables for a terminal. Commands are in `commands.py`."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from cyclopts import App, Parameter
from pydantic_core import to_json
from rich.console import Group
from rich.text import Text

from redrive.outbox.installation import checked_schema
from redrive.outbox.rows import Outbox, OutboxEntry, OutboxFilter, OutboxRow, OutboxStatus
from redrive.outbox.settings import OutboxSettings
from redrive.settings import read_environment, read_settings
from redrive.starter.cli.list_options import FIRST_PAGE, PageOptions
from redrive.starter.cli.records import database_errors
from redrive.starter.cli.runs.views import moment, print_json, print_page
from redrive.starter.cli.terminal import Json, Listing, console, plain

app = App(name="outbox")
app.command("redrive.starter.cli.outbox.commands:install", help="Make the outbox's table and functions.")
app.command("redrive.starter.cli.outbox.commands:sync", help="Store the JSON schemas of the pipelines.")
app.command("redrive.starter.cli.outbox.commands:replay", help="Replay a failed row in place.")
app.command("redrive.starter.cli.outbox.commands:purge", help="Delete rows that are over.")
Schema = Annotated[
    str | None, Parameter(help="The schema that has the outbox; by default REDRIVE_OUTBOX_SCHEMA, or `redrive`.")
]
RowId = Annotated[str, Parameter(name="ID", help="The row's `event_id`, or a beginning of it.")]
_STYLES = {
    OutboxStatus.PENDING: "yellow",
    OutboxStatus.IN_FLIGHT: "cyan",
    OutboxStatus.DELIVERED: "green",
    OutboxStatus.FAILED: "bold red",
}
_SHOWN = 4096


def outbox_settings(schema: str | None) -> OutboxSettings:
    """Return the outbox that is meant."""
    return read_environment(OutboxSettings, **({} if schema is None else {"schema_name": checked_schema(schema)}))


@contextlib.asynccontextmanager
async def open_outbox(chosen: OutboxSettings) -> AsyncIterator[Outbox]:
    """Connect to the outbox for the length of a command."""
    async with Outbox(chosen.url(read_settings()), chosen.schema_name, max_size=2) as outbox:
        with database_errors():
            yield outbox


@app.command(name="list")
async def list_all(
    *,
    tenant: str | None = None,
    status: OutboxStatus | None = None,
    pipeline: str | None = None,
    key: str | None = None,
    schema: Schema = None,
    shown: PageOptions = FIRST_PAGE,
) -> None:
    """List rows of the outbox, the newest first. Withdrawn ones are left out.

    **Example**

    `redrive outbox list --status failed`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    status
        Only those with this status: `pending`, `in_flight`, `delivered` or `failed`.
    pipeline
        Only those of this pipeline.
    key
        Only the one with this key.
    """
    chosen = OutboxFilter(tenant=tenant, status=status, pipeline=pipeline, key=key)
    async with open_outbox(outbox_settings(schema)) as outbox:
        page = await outbox.list_rows(chosen, shown.limit, shown.cursor)
    print_page("rows", page.rows, page.cursor, rows_table, none="no rows", json=shown.json)


@app.command
async def show(event: RowId, *, schema: Schema = None, json: Json = False) -> None:
    """Show one row: where it is, its failed cycles, its payload. Secrets are left out.

    **Example**

    `redrive outbox show 5f0c8a1e-0c7b-4c58-9c5e-0d8b9f5f2a11`
    """
    async with open_outbox(outbox_settings(schema)) as outbox:
        row = await outbox.get(None, event)
    payload = read_settings().redactor().value(row.payload)
    row = row.model_copy(update={"payload": payload})
    if json:
        print_json(row)
    else:
        console.print(_story(row))


def rows_table(rows: Sequence[OutboxRow]) -> Listing:
    """Return a list of rows."""
    table = Listing("event", "tenant", "status", "pipeline", "key", "created", "tries", "run", "error")
    for row in rows:
        table.add_row(
            str(row.event_id),
            row.tenant,
            Text("waits" if row.waits else row.status, style=_STYLES[row.status]),
            row.pipeline,
            plain(row.key),
            moment(row.created_at),
            str(row.attempts),
            row.run_id or "",
            plain((row.last_error or "")[:160]),
        )
    return table


def _story(row: OutboxEntry) -> Group:
    cycles = Listing("cycle", "tries", "failed", "generation", "replayed by", "replayed", "error")
    for each in row.failure_history:
        failed = moment(each.failed_at) if each.failed_at else ""
        facts = (str(each.generation), plain(each.replayed_by or ""), moment(each.replayed_at))
        cycles.add_row(str(each.cycle), str(each.attempts), failed, *facts, plain((each.last_error or "")[:160]))
    return Group(
        rows_table([row]),
        Text(""),
        cycles if row.failure_history else Text("never replayed", style="dim"),
        Text(""),
        *(plain(f"{name}: {value}") for name, value in _facts(row).items() if value),
        plain(f"error: {row.last_error or '-'}"),
        plain(f"payload: {to_json(row.payload).decode()[:_SHOWN]}"),
    )


def _facts(row: OutboxEntry) -> dict[str, str | None]:
    """Return what the list has no column for."""
    order = f"{row.ordering_key} (behind an earlier row)" if row.waits else row.ordering_key
    by = f" by {row.replayed_by}" if row.replayed_by else ""
    return {
        "run after": moment(row.run_after) if row.status is OutboxStatus.PENDING else None,
        "ordering key": order,
        "generation": f"{row.generation}{by}" if row.generation or by else None,
        "labels": ", ".join(f"{name}={value}" for name, value in sorted(row.labels.items())),
        "correlation id": row.correlation_id,
        "user": row.user_id,
    }
