"""Bulk operations and their items as tables for a terminal."""

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from redrive.bulk_records import BulkItem, BulkProgress, BulkStatus, BulkView, ItemStatus
from redrive.starter.cli.runs.views import moment
from redrive.starter.cli.terminal import Facts, Listing, plain

_STYLES = {
    BulkStatus.DONE: "green",
    BulkStatus.STOPPED: "bold red",
    BulkStatus.STOPPING: "red",
    BulkStatus.PAUSED: "yellow",
    BulkStatus.RUNNING: "cyan",
}
_ITEM_STYLES = {ItemStatus.APPLIED: "green", ItemStatus.FAILED: "bold red", ItemStatus.SKIPPED: "yellow"}


def bulks_table(views: Sequence[BulkView]) -> Listing:
    """Return a list of bulk operations."""
    headers = ("bulk operation", "tenant", "verb", "status", "total", "applied", "skipped", "failed", "by", "started")
    table = Listing(*headers)
    for view in views:
        now = view.progress
        counts = (str(number) for number in (now.total, now.applied, now.skipped, now.failed))
        status = Text(view.status.value, style=_STYLES[view.status])
        table.add_row(
            view.id, view.tenant, view.verb.value, status, *counts, plain(view.requested_by), moment(view.started_at)
        )
    return table


def bulk_view(view: BulkView) -> Group:
    """Return one bulk operation without its items."""
    facts = {
        "progress": progress_line(view.progress),
        "tenant": view.tenant,
        "by": view.requested_by,
        "reason": view.reason,
        "started": moment(view.started_at),
        "ended": moment(view.finished_at) if view.finished_at else "",
        "stopped because": view.stopped_because or "",
        "request id": view.request_id,
        "plan": view.plan_hash,
        "options": ", ".join(f"{name} {value}" for name, value in view.options.items() if value),
    }
    title = Text.assemble(view.id, "  ", view.verb.value, "  ", (view.status.value, _STYLES[view.status]))
    return Group(title, Facts(facts))


def progress_line(now: BulkProgress) -> str:
    """Return the counts in one line; they add up to the total."""
    parts = {
        "pending": now.pending,
        "under way": now.under_way,
        "applied": now.applied,
        "skipped": now.skipped,
        "failed": now.failed,
    }
    return f"{now.total} in all: " + ", ".join(f"{count} {name}" for name, count in parts.items())


def items_table(items: Sequence[BulkItem]) -> Listing:
    """Return items and their outcomes."""
    table = Listing("no.", "dead letter", "status", "why")
    for item in items:
        status = Text(item.status.value, style=_ITEM_STYLES.get(item.status, ""))
        table.add_row(str(item.position + 1), plain(item.letter_id), status, plain(item.why or ""))
    return table
