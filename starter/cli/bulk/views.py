"""Bulk operations, their plans and items as tables for a terminal."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from redrive.bulk import BulkItem, BulkPlan, BulkProgress, BulkStatus, BulkView, ItemStatus, PlannedGroup
from redrive.documents import changed_paths
from redrive.starter.cli.runs.views import moment
from redrive.starter.cli.terminal import plain

_STYLES = {
    BulkStatus.DONE: "green",
    BulkStatus.STOPPED: "bold red",
    BulkStatus.STOPPING: "red",
    BulkStatus.PAUSED: "yellow",
    BulkStatus.RUNNING: "cyan",
}
_ITEM_STYLES = {ItemStatus.APPLIED: "green", ItemStatus.FAILED: "bold red", ItemStatus.SKIPPED: "yellow"}


def plan_view(plan: BulkPlan) -> Group:
    """Return what a bulk operation would do."""
    groups = Table("pipeline", "step", "dead letters", "run again", "afterwards", box=None, header_style="bold")
    for group in plan.groups:
        groups.add_row(*map(plain, (group.pipeline, group.step, str(group.count), _again(group), _after(group))))
    facts = Table(box=None, show_header=False)
    command = plan.command
    facts.add_row("plan", plan.hash)
    facts.add_row("to do", f"{command.verb} {plan.count} dead letters of tenant {command.tenant}")
    if command.selection.until:
        facts.add_row("until", command.selection.until.isoformat())
    facts.add_row("care", _care(plan))
    if command.input_patch:
        facts.add_row("edited", plain(", ".join(changed_paths(command.input_patch))))
    if plan.unsafe:
        facts.add_row("unsafe", plain(f"{', '.join(plan.unsafe)}: add --allow-unsafe to repeat them", "bold red"))
    if plan.approval_needed:
        facts.add_row("approval", "a start of this plan waits until another person has approved it, within an hour")
    notes = [plain(f"{group.pipeline}: {group.note}", "yellow") for group in plan.groups if group.note]
    return Group(facts, groups, *notes)


def _again(group: PlannedGroup) -> str:
    return ", ".join(f"{step.name} ({step.effect or 'effect not known'})" for step in group.run_again) or "none"


def _after(group: PlannedGroup) -> str:
    return ", ".join(group.afterwards) or "none"


def _care(plan: BulkPlan) -> str:
    command = plan.command
    rate = f"{command.rate:g} a second" if command.rate else "as fast as they are taken"
    canary = f"a canary of {command.canary} first, " if command.canary else ""
    return f"{canary}{command.parallelism} at once, {rate}, stop when more than {command.stop_percent:g} % fail"


def bulks_table(views: Sequence[BulkView]) -> Table:
    """Return a list of bulk operations."""
    headers = ("bulk operation", "tenant", "verb", "status", "total", "applied", "skipped", "failed", "by", "started")
    table = Table(*headers, box=None, header_style="bold")
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
    facts = Table(box=None, show_header=False)
    rows = {
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
    for name, value in rows.items():
        if value:
            facts.add_row(name, plain(value))
    title = Text.assemble(view.id, "  ", view.verb.value, "  ", (view.status.value, _STYLES[view.status]))
    return Group(title, facts)


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


def items_table(items: Sequence[BulkItem]) -> Table:
    """Return items and their outcomes."""
    table = Table("no.", "dead letter", "status", "why", box=None, header_style="bold")
    for item in items:
        status = Text(item.status.value, style=_ITEM_STYLES.get(item.status, ""))
        table.add_row(str(item.position + 1), plain(item.letter_id), status, plain(item.why or ""))
    return table
