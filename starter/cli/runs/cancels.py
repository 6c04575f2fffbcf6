"""What `redrive run cancel` records."""

from redrive.contracts import RunView
from redrive.settings import Settings
from redrive.starter.cli.records import open_records_if_any
from redrive.store.runs import put_cancel


async def note_cancel(settings: Settings, view: RunView, *, actor: str, reason: str) -> None:
    """Record in the audit log that a run is asked to stop, where there is a database."""
    async with open_records_if_any(settings) as pool:
        if pool:
            await put_cancel(pool, tenant=view.tenant, run_id=view.run_id, actor=actor, reason=reason)
