"""Temporal's own command line is enough to work with dead letters."""

import asyncio
import json

from redrive import RunStatus
from redrive.dead_letters import LetterStatus
from redrive.starter.stack.state import StackInfo
from redrive.starter.stack.temporal_server import find_temporal
from tests.integration.dead_letters.lab import Case


async def temporal(stack: StackInfo, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(find_temporal()),
        *arguments,
        "--address",
        stack.temporal_address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_temporal_workflow_signal_replays_a_parked_run(case: Case, stack: StackInfo) -> None:
    """`temporal workflow signal` to the dead letter queue takes the run on."""
    await case.park("second")
    case.mend()
    command = json.dumps(case.addressed())
    target = ("--workflow-id", case.queue.id)
    await temporal(stack, "workflow", "signal", *target, "--name", "replay", "--input", command)
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    await case.until_letter("second", LetterStatus.REPLAYED)


async def test_temporal_workflow_signal_without_input_is_refused(case: Case, stack: StackInfo) -> None:
    """A signal that somebody sent in haste harms nothing."""
    await case.park("second")
    await temporal(stack, "workflow", "signal", "--workflow-id", case.run_id, "--name", "discard")
    rows = await case.refusals(1)
    assert "argument" in rows[0]["after"]["problem"] or rows[0]["after"]["problem"]
    await case.works_still()


async def test_temporal_workflow_update_answers(case: Case, stack: StackInfo) -> None:
    """An update prints the answer."""
    await case.park("second")
    target = ("--workflow-id", case.queue.id, "--name", "replay")
    command = json.dumps(case.addressed(from_step="nowhere"))
    output = await temporal(stack, "workflow", "update", "execute", *target, "--input", command)
    assert "not one of the steps" in output
