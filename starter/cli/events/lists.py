"""`redrive events …`: show events and dead events. Replay and discard are in `commands.py`."""

from typing import Annotated

from cyclopts import App, Parameter

from redrive.errors import EventNotFound
from redrive.postgres.tenancy import QUARANTINE, Pool
from redrive.redaction.redactor import Redactor
from redrive.settings import read_settings
from redrive.starter.cli.command_options import FIRST_PAGE, PageOptions
from redrive.starter.cli.events.views import (
    MESSAGE_SHOWN,
    dead_event_story,
    dead_events_table,
    event_story,
    events_table,
)
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, console, errors
from redrive.store.audit.lists import list_audit
from redrive.store.events.dead import (
    DeadEvent,
    DeadEventFilter,
    DeadEventStatus,
    get_dead_event,
    list_dead_events,
    message_of,
)
from redrive.store.events.records import EventFilter, get_event, list_events, projections_of

app = App(name="events", help="Events from brokers: look at them, replay them, give dead ones up.")
app.command("redrive.starter.cli.events.commands:replay")
app.command("redrive.starter.cli.events.commands:discard_event", name=["discard", "ignore"])


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
    async with open_records(read_settings()) as pool:
        page = await list_events(pool, chosen, shown.limit, shown.cursor)
    if shown.json:
        print_json({"events": page.rows, "cursor": page.cursor})
    else:
        console.print(events_table(page.rows) if page.rows else "no events")
        _print_cursor(page.cursor)


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
    async with open_records(read_settings()) as pool:
        page = await list_dead_events(pool, chosen, shown.limit, shown.cursor)
    if shown.json:
        print_json({"dead_events": page.rows, "cursor": page.cursor})
    else:
        console.print(dead_events_table(page.rows) if page.rows else "no dead events")
        _print_cursor(page.cursor)


@app.command
async def show(event: Annotated[str, Parameter(name="ID")], *, json: Json = False) -> None:
    """Show an event with its projectors, or a dead event with its message. Secrets are left out.

    **Example**

    `redrive events show event-4vrm3kq5cf3zq6y2c7o5h2bnl4wz5m3a`

    Parameters
    ----------
    event
        The id of an event or of a dead event.
    """
    settings = read_settings()
    redactor = settings.redactor()
    async with open_records(settings) as pool:
        found = await get_dead_event(pool, None, event)
        if found is not None:
            await _show_dead(pool, found, redactor, json=json)
            return
        stored = await get_event(pool, None, event)
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


def _print_cursor(cursor: str | None) -> None:
    if cursor:
        errors.print(f"more: --cursor {cursor}", markup=False)
