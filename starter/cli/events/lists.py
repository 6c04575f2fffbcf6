"""`redrive events …`: show events and dead events, as tables for a terminal. Commands are in `commands.py`."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Parameter
from pydantic_core import to_json
from rich.console import Group
from rich.text import Text

from redrive.connection import read_addresses
from redrive.errors import EventNotFound
from redrive.postgres.tenancy import QUARANTINE, Pool
from redrive.redaction.redactor import Redactor
from redrive.settings import read_settings
from redrive.starter.cli.dead_letters.views import audit_facts
from redrive.starter.cli.list_options import FIRST_PAGE, PageOptions
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.views import moment, print_json, print_page
from redrive.starter.cli.terminal import Json, Listing, console, plain
from redrive.store.audit import AuditLine, list_audit
from redrive.store.broker_records import whole_id
from redrive.store.events.dead import (
    DeadEvent,
    DeadEventFilter,
    DeadEventStatus,
    get_dead_event,
    list_dead_events,
    message_of,
)
from redrive.store.events.records import (
    EventFilter,
    EventRow,
    Projection,
    StoredEvent,
    get_event,
    list_events,
    projections_of,
)

app = App(name="events")
app.command("redrive.starter.cli.events.commands:replay", help="Replay an event, or a dead one.")
app.command("redrive.starter.cli.trial_messages:send_event", name="send", help="Send an event, to try a bridge out.")
app.command(
    "redrive.starter.cli.events.commands:discard_event", name=["discard", "ignore"], help="Discard a dead event."
)
_STYLES = {
    "succeeded": "green",
    "replayed": "green",
    "failed": "bold red",
    "pending": "bold red",
    "replaying": "yellow",
}
MESSAGE_SHOWN = 4096


@app.command(name="list")
async def list_all(
    *,
    tenant: str | None = None,
    event_type: Annotated[str | None, Parameter(name="--type")] = None,
    failed: bool = False,
    shown: PageOptions = FIRST_PAGE,
) -> None:
    """List stored events, the newest first.

    **Example**

    `redrive events list --failed --type interview.completed`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    event_type
        Only those of this type.
    failed
        Only those with a projector that failed for good.
    """
    chosen = EventFilter(tenant=tenant, type=event_type, failed=failed)
    async with open_records(read_addresses()) as pool:
        page = await list_events(pool, chosen, shown.limit, shown.cursor)
    print_page("events", page.rows, page.cursor, events_table, none="no events", json=shown.json)


@app.command
async def dead(
    *,
    tenant: str | None = None,
    status: DeadEventStatus | None = None,
    stream: str | None = None,
    quarantined: bool = False,
    shown: PageOptions = FIRST_PAGE,
) -> None:
    """List messages that could not become a run, the newest failure first.

    **Example**

    `redrive events dead --status pending`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    status
        Only those with this status.
    stream
        Only those from this stream.
    quarantined
        Only those whose tenant is unknown.
    """
    whose = QUARANTINE if quarantined else tenant
    chosen = DeadEventFilter(tenant=whose, status=status, source_stream=stream)
    async with open_records(read_addresses()) as pool:
        page = await list_dead_events(pool, chosen, shown.limit, shown.cursor)
    print_page("dead_events", page.rows, page.cursor, dead_events_table, none="no dead events", json=shown.json)


@app.command
async def show(event: Annotated[str, Parameter(name="ID")], /, *, json: Json = False) -> None:
    """Show an event with its projectors, or a dead event with its message. Secrets are left out.

    **Example**

    `redrive events show event-4vrm3kq5cf3zq6y2c7o5h2bnl4wz5m3a`

    Parameters
    ----------
    event
        The id of an event or of a dead event, or a beginning of it that no other has.
    """
    settings = read_settings()
    redactor = settings.redactor()
    async with open_records(settings) as pool:
        found = await get_dead_event(pool, None, await whole_id(pool, None, "dead_events", event))
        if found is not None:
            await _show_dead(pool, found, redactor, json=json)
            return
        stored = await get_event(pool, None, await whole_id(pool, None, "events", event))
        if stored is None:
            raise EventNotFound(f"no event has the id {event[:200]!r}; `redrive events list` shows those there are")
        records = await projections_of(pool, stored.tenant, stored.id)
    shown = stored.model_copy(update={"payload": redactor.value(stored.payload)})
    if json:
        print_json({"event": shown, "projectors": records})
    else:
        console.print(event_story(shown, records))


async def _show_dead(pool: Pool, found: DeadEvent, redactor: Redactor, *, json: bool) -> None:
    body = await message_of(pool, found, MESSAGE_SHOWN)
    message = redactor.text(body.decode(errors="backslashreplace"))
    audit = await list_audit(pool, found.tenant, found.id)
    if json:
        print_json({"dead_event": found, "message": message, "audit": audit})
    else:
        console.print(dead_event_story(found, message, audit))


def events_table(rows: Sequence[EventRow]) -> Listing:
    """Return a list of events."""
    table = Listing("event", "type", "source", "tenant", "dedupe key", "run", "received")
    for row in rows:
        texts = (plain(row.type), plain(row.source), row.tenant, plain(row.dedupe_key))
        table.add_row(row.id, *texts, row.run_id, moment(row.received_at))
    return table


def event_story(event: StoredEvent, records: Sequence[Projection]) -> Group:
    """Return one event with the outcomes of its projectors."""
    return Group(
        events_table([event]),
        Text(""),
        projections_table(records) if records else Text("no projector has ended yet", style="yellow"),
        Text(""),
        plain(f"payload: {to_json(event.payload).decode()[:MESSAGE_SHOWN]}"),
    )


def projections_table(records: Sequence[Projection]) -> Listing:
    """Return the projectors of an event."""
    table = Listing("projector", "status", "attempt", "completed", "run", "error")
    for row in records:
        status = Text(row.status, style=_STYLES.get(row.status, ""))
        error = plain((row.error or "")[:160])
        table.add_row(row.projector, status, str(row.attempt), moment(row.completed_at), row.run_id, error)
    return table


def dead_events_table(rows: Sequence[DeadEvent]) -> Listing:
    """Return a list of dead messages."""
    headers = ("dead event", "tenant", "status", "stream", "message", "attempts", "last attempt", "error")
    table = Listing(*headers)
    for row in rows:
        status = Text(row.status, style=_STYLES.get(row.status, ""))
        place = (plain(row.source_stream), plain(row.source_message_id))
        table.add_row(
            row.id,
            row.tenant,
            status,
            *place,
            str(row.attempts),
            moment(row.last_attempt_at),
            plain(f"{row.category}: {row.error}"[:160]),
        )
    return table


def dead_event_story(dead: DeadEvent, message: str, audit: Sequence[AuditLine]) -> Group:
    """Return one dead message, and what was done to it."""
    lines = Listing("when", "what", "who", "why", "request")
    for line in reversed(audit):
        lines.add_row(*audit_facts(line))
    error, text = plain(f"error: {dead.error}"), plain(f"message: {message[:MESSAGE_SHOWN]}")
    return Group(dead_events_table([dead]), Text(""), error, text, Text(""), lines)
