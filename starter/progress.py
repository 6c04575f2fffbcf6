"""Follow a run in the terminal until it has ended."""

import asyncio

from rich.console import Console
from rich.live import Live

from redrive import Redrive
from redrive.contracts import RunView
from starter.views import run_table

INTERVAL = 0.25


async def follow(redrive: Redrive, run_id: str, *, quiet: bool = False) -> RunView:
    """Show a run's progress and return its last view."""
    console = Console(quiet=quiet)
    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        while True:
            view = await redrive.status(run_id)
            live.update(run_table(view), refresh=console.is_terminal)
            if view.status.closed:
                break
            await asyncio.sleep(INTERVAL)
    if not console.is_terminal:
        console.print(run_table(view))
    return view
