"""Wait for a run, show how it ended, and turn that into an exit code."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from rich.live import Live

from redrive.contracts import RunStatus, RunView, StepState, StepStatus
from redrive.errors import RunCanceled, RunFailed, Unavailable
from redrive.starter.cli.errors import RunParked
from redrive.starter.cli.runs.views import attempts_text, last_error, print_json, run_json, run_table
from redrive.starter.cli.terminal import console, errors
from redrive.starter.cli.waiting import INTERVAL, until_answered

if TYPE_CHECKING:
    from redrive import Redrive


async def wait_for_run(
    redrive: "Redrive",
    run_id: str,
    *,
    json: bool,
    begun: Callable[[], Awaitable[bool]] | None = None,
    answer: object = None,
) -> None:
    """Wait until a run has ended or waits for an operator, show it, and raise unless it succeeded.

    `answer` is the answer to the command that made the run continue; scripts get it with the run.
    """
    try:
        view = await follow(redrive, run_id, quiet=json, begun=begun)
    except asyncio.CancelledError:
        errors.print(f"no longer waiting; run {run_id} goes on: see `redrive run status {run_id}`", markup=False)
        raise
    output = await run_output(redrive, run_id, view.status)
    if json:
        print_json(run_json(view, output) | ({"answer": answer} if answer else {}))
    else:
        console.print(run_table(view, output))
    _judge(view, json=json)


async def run_output(redrive: "Redrive", run_id: str, status: RunStatus) -> object:
    """Return a run's output; None while there is none."""
    return (await redrive.result(run_id)).output if status is RunStatus.SUCCESS else None


def _judge(view: RunView, *, json: bool) -> None:
    because = f": {view.error}" if json else ""
    match view.status:
        case RunStatus.FAILED:
            raise RunFailed(f"run {view.run_id} FAILED{because}")
        case RunStatus.CANCELED:
            raise RunCanceled(f"run {view.run_id} was CANCELED")
        case RunStatus.DLQ_PENDING:
            step = next((step.name for step in view.steps if step.status is StepStatus.DLQ), "")
            raise RunParked(f"run {view.run_id} is parked: see `redrive dlq show {view.run_id}/{step}`{because}")
        case RunStatus.PARTIAL if not json:
            errors.print(f"later steps wait for `redrive run continue {view.run_id} --reason …`", markup=False)


async def tell_if_no_worker(redrive: "Redrive") -> None:
    """Say that runs wait if no worker polls the task queue."""
    try:
        if not await redrive.has_worker():
            errors.print(NO_WORKER, markup=False, soft_wrap=True)
    except Unavailable:
        # The run is started: whether it waits is only a hint.
        return


NO_WORKER = (
    "no worker is running: the run waits in Temporal, and begins when one that has its pipeline is started "
    "(`redrive worker --modules …`)"
)
_WAITS_FOR_SOMEBODY = frozenset({RunStatus.DLQ_PENDING, RunStatus.PARTIAL})


async def follow(
    redrive: "Redrive", run_id: str, *, quiet: bool = False, begun: Callable[[], Awaitable[bool]] | None = None
) -> RunView:
    """Show a run's progress and return its last view.

    A run that was just told to continue is still parked: `begun` tells whether it has taken the command.
    """
    said: dict[str, str] = {}
    if not quiet and not console.is_terminal:
        console.print(f"{run_id} started", markup=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            # In this order: the view of the run is not older than the answer.
            has_begun = begun is None or await begun()
            view = await until_answered(partial(redrive.status, run_id))
            if quiet:
                pass
            elif console.is_terminal:
                live.update(run_table(view), refresh=True)
            else:
                _print_changes(view, said)
            if has_begun and (view.status.closed or view.status in _WAITS_FOR_SOMEBODY):
                return view
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
