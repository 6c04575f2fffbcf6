"""Wait for a run, show how it ended, and turn that into an exit code."""

import asyncio
from collections.abc import Awaitable, Callable

from redrive import Redrive
from redrive.contracts import RunStatus, RunView, StepStatus
from redrive.errors import RunCanceled, RunFailed
from starter.errors import RunParked
from starter.progress import follow
from starter.terminal import console, errors
from starter.views import print_json, run_json, run_table


async def wait_for_run(
    redrive: Redrive,
    run_id: str,
    *,
    json: bool,
    begun: Callable[[], Awaitable[bool]] | None = None,
    answer: object = None,
) -> None:
    """Wait until a run has ended or waits for an operator, show it, and raise when that is not well.

    `answer` is what an order that made the run go on was told; scripts get it with the run.
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


async def run_output(redrive: Redrive, run_id: str, status: RunStatus) -> object:
    """Return what a run returned; None while there is nothing."""
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
