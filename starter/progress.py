"""Follow a run in the terminal until it has ended, or waits for somebody."""

import asyncio
from collections.abc import Awaitable, Callable

from rich.live import Live

from redrive import Redrive
from redrive.contracts import RunStatus, RunView, StepState
from redrive.errors import Unavailable
from starter.terminal import console
from starter.views import attempts_text, last_error, run_table

INTERVAL = 0.25
# A server that restarts is back before this; a wait should outlast it as the run does.
OUTAGE_PATIENCE = 60.0
_WAITS_FOR_SOMEBODY = frozenset({RunStatus.DLQ_PENDING, RunStatus.PARTIAL})


async def follow(
    redrive: Redrive, run_id: str, *, quiet: bool = False, begun: Callable[[], Awaitable[bool]] | None = None
) -> RunView:
    """Show a run's progress and return its last view.

    A run that was just ordered to go on is parked still: `begun` tells whether it has taken the order.
    """
    said: dict[str, str] = {}
    if not quiet and not console.is_terminal:
        console.print(f"{run_id} started", markup=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            # In this order: what is seen of the run is not older than the answer.
            has_begun = begun is None or await begun()
            view = await _status(redrive, run_id)
            if quiet:
                pass
            elif console.is_terminal:
                live.update(run_table(view), refresh=True)
            else:
                _print_changes(view, said)
            if has_begun and (view.status.closed or view.status in _WAITS_FOR_SOMEBODY):
                return view
            await asyncio.sleep(INTERVAL)


async def _status(redrive: Redrive, run_id: str) -> RunView:
    """Return where the run is, however often the server must be asked."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + OUTAGE_PATIENCE
    while True:
        try:
            return await redrive.status(run_id)
        except Unavailable:
            if loop.time() > give_up:
                raise
        await asyncio.sleep(INTERVAL)


def _print_changes(view: RunView, said: dict[str, str]) -> None:
    for step in view.steps:
        line = _line(step)
        if step.attempt and said.get(step.name) != line:
            console.print(line, markup=False, soft_wrap=True)
            said[step.name] = line


def _line(step: StepState) -> str:
    parts = (step.name, step.status.value, f"attempt {attempts_text(step)}", last_error(step).plain)
    return "  " + "  ".join(part for part in parts if part)
