"""Events and dead messages as tables for a terminal."""

from collections.abc import Sequence

from pydantic_core import to_json
from rich.console import Group
from rich.table import Table
from rich.text import Text

from redrive.starter.cli.dead_letters.views import audit_facts
from redrive.starter.cli.runs.views import moment
from redrive.starter.cli.terminal import plain
from redrive.store.audit.lists import AuditLine
from redrive.store.events.dead import DeadEvent
from redrive.store.events.records import EventRow, Projection, StoredEvent

_STYLES = {
    "succeeded": "green",
    "replayed": "green",
    "failed": "bold red",
    "pending": "bold red",
    "replaying": "yellow",
}
MESSAGE_SHOWN = 4096


def events_table(rows: Sequence[EventRow]) -> Table:
    """Return a list of events."""
    table = Table("event", "type", "source", "tenant", "dedupe key", "run", "received", box=None, header_style="bold")
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


def projections_table(records: Sequence[Projection]) -> Table:
    """Return the projectors of an event."""
    table = Table("projector", "status", "attempt", "completed", "run", "error", box=None, header_style="bold")
    for row in records:
        status = Text(row.status, style=_STYLES.get(row.status, ""))
        error = plain((row.error or "")[:160])
        table.add_row(row.projector, status, str(row.attempt), moment(row.completed_at), row.run_id, error)
    return table


def dead_events_table(rows: Sequence[DeadEvent]) -> Table:
    """Return a list of dead messages."""
    headers = ("dead event", "tenant", "status", "stream", "message", "tries", "last try", "error")
    table = Table(*headers, box=None, header_style="bold")
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
    lines = Table("when", "what", "who", "why", "request", box=None, header_style="bold")
    for line in reversed(audit):
        lines.add_row(*audit_facts(line))
    error, text = plain(f"error: {dead.error}"), plain(f"message: {message[:MESSAGE_SHOWN]}")
    return Group(dead_events_table([dead]), Text(""), error, text, Text(""), lines)
