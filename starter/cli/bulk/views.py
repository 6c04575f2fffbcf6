"""Bulk operations, their plans and items as tables for a terminal, and their progress.

An operation is followed until it has ended: a bar on a terminal, a line for each change elsewhere.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from redrive.bulk import BulkItem, BulkPlan, BulkProgress, BulkStatus, BulkView, ItemStatus, PlannedGroup
from redrive.documents import changed_paths
from redrive.postgres.tenancy import Pool
from redrive.starter.cli.errors import BulkIncomplete
from redrive.starter.cli.records import database_errors
from redrive.starter.cli.runs.progress import INTERVAL, until_answered
from redrive.starter.cli.runs.views import moment
from redrive.starter.cli.terminal import Facts, Listing, console, errors, plain
from redrive.store.bulk.operations import get_bulk

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
    groups = Listing("pipeline", "step", "dead letters", "run again", "afterwards")
    for group in plan.groups:
        groups.add_row(*map(plain, (group.pipeline, group.step, str(group.count), _again(group), _after(group))))
    command = plan.command
    edited, unsafe = changed_paths(command.input_patch or {}), ", ".join(plan.unsafe)
    approval = "a start of this plan waits until another person has approved it, within an hour"
    facts = Facts(
        {
            "plan": plan.hash,
            "to do": f"{command.verb} {plan.count} dead letters of tenant {command.tenant}",
            "until": command.selection.until.isoformat() if command.selection.until else None,
            "care": _care(plan),
            "edited": ", ".join(edited),
            "unsafe": f"{unsafe}: add --allow-unsafe to repeat them" if unsafe else None,
            "approval": approval if plan.approval_needed else None,
        }
    )
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


class _Shower(Protocol):
    def __call__(self, view: BulkView) -> None: ...


async def follow_bulk(pool: Pool, bulk_id: str, *, quiet: bool) -> BulkView:
    """Show progress until the end, and return the last view. Ctrl-C stops the display, not the bulk operation."""
    try:
        with _shower(quiet=quiet) as show:
            while True:
                view = await until_answered(partial(_view, pool, bulk_id))
                show(view)
                if view.status.closed:
                    return view
                await asyncio.sleep(INTERVAL)
    except asyncio.CancelledError:
        errors.print(f"no longer watching; {bulk_id} goes on: see `redrive bulk show {bulk_id}`", markup=False)
        raise


def judge(view: BulkView) -> None:
    """Raise if not everything was applied."""
    now = view.progress
    if view.status is BulkStatus.STOPPED or now.failed or now.skipped:
        stopped = f"stopped: {view.stopped_because}; " if view.status is BulkStatus.STOPPED else ""
        raise BulkIncomplete(
            f"{stopped}{now.applied} of {now.total} applied, {now.skipped} skipped, {now.failed} failed: "
            f"see `redrive bulk items {view.id} --status {'failed' if now.failed else 'skipped'}`"
        )


async def _view(pool: Pool, bulk_id: str) -> BulkView:
    with database_errors():
        return await get_bulk(pool, None, bulk_id)


def _say_nothing(view: BulkView) -> None:
    """Show nothing: a script reads only the end."""
    del view


@contextmanager
def _shower(*, quiet: bool) -> Iterator[_Shower]:
    if quiet:
        yield _say_nothing
    elif console.is_terminal:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=None)

            def draw(view: BulkView) -> None:
                now = view.progress
                told = f"{view.status}  applied {now.applied}  skipped {now.skipped}  failed {now.failed}"
                ended = now.applied + now.skipped + now.failed
                bar.update(task, total=now.total, completed=ended, description=told)

            yield draw
    else:
        said = ""

        def tell(view: BulkView) -> None:
            nonlocal said
            line = f"{view.status}  {progress_line(view.progress)}"
            if line != said:
                console.print(line, markup=False, soft_wrap=True)
            said = line

        yield tell
