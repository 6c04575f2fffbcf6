"""`redrive run retrying`, `pause-activity`, …: failing activities of workflows that are no pipeline runs."""

from collections.abc import Sequence

from rich.text import Text

from redrive.connection import connect_temporal
from redrive.contracts import ActivityName, ActivityVerb, PendingActivity
from redrive.pending_activities import PendingActivities, activity_of, command_activity, list_failing
from redrive.settings import Settings
from redrive.starter.cli.records import open_records_if_any
from redrive.starter.cli.runs.views import wait
from redrive.starter.cli.terminal import Listing, console, errors
from redrive.store.runs import put_activity_command

DONE = {
    ActivityVerb.PAUSE: "paused",
    ActivityVerb.UNPAUSE: "it goes on",
    ActivityVerb.RETRY: "it is tried again now, its attempts counted from the first",
}


async def find_failing(settings: Settings, tenant: str | None) -> PendingActivities:
    """Return failing activities among the first open workflows of the namespace."""
    return await list_failing(await connect_temporal(settings), tenant, settings.redactor())


def print_failing(found: PendingActivities) -> None:
    """Print failing activities, and on stderr if there are workflows that were not looked at."""
    if found.activities:
        console.print(_table(found.activities))
    if found.cursor:
        errors.print(f"{found.looked_at} open workflows were looked at, and there are more: name a tenant")


async def command(
    settings: Settings, verb: ActivityVerb, workflow_id: str, activity: str, *, by: str, reason: str
) -> None:
    """Record what is asked of an activity, where there is a database, and do it."""
    client = await connect_temporal(settings)
    named = ActivityName(workflow_id=workflow_id, activity_id=activity)
    found = await activity_of(client, None, named, settings.redactor())
    async with open_records_if_any(settings) as pool:
        if pool:
            await put_activity_command(pool, verb, found, actor=by, reason=settings.redactor().text(reason))
    await command_activity(client, verb, found, by=by, reason=reason)


def _table(rows: Sequence[PendingActivity]) -> Listing:
    table = Listing("workflow", "activity", "activity id", "type", "tenant", "attempt", "next retry", "last error")
    for row in rows:
        attempt = f"{row.attempt} of {row.max_attempts}" if row.max_attempts else str(row.attempt)
        due = "paused" if row.is_paused else wait(row.next_at) if row.next_at else "now"
        error = Text(f"{row.error_type}: {row.error[:160]}")
        table.add_row(
            row.workflow_id, row.activity, row.activity_id, row.workflow_type, row.tenant, attempt, due, error
        )
    return table
