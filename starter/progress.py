"""Follow a run in the terminal until it has ended."""

import asyncio

from rich.live import Live

from redrive import Redrive
from redrive.contracts import RunView
from starter.terminal import console
from starter.views import run_table

INTERVAL = 0.25


async def follow(redrive: Redrive, run_id: str, *, quiet: bool = False) -> RunView:
    """Show a run's progress and return its last view."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            view = await redrive.status(run_id)
            if console.is_terminal and not quiet:
                live.update(run_table(view), refresh=True)
            if view.status.closed:
                break
            await asyncio.sleep(INTERVAL)
    if not quiet:
        console.print(run_table(view))
    return view
