"""The demo's second part: an operator reads a dead letter, fixes the input and replays the run."""

import asyncio

from pydantic_core import to_json
from rich.text import Text

from redrive import Redrive
from redrive.contracts import RunView, StepStatus
from redrive.dead_letters import LetterId
from redrive.errors import RedriveError
from redrive.postgres.database import Database
from redrive.starter.cli.terminal import console
from redrive.starter.demo.story import Scene
from redrive.store.dead_letters.lists import get_letter
from redrive.store.dead_letters.models import LetterRecord

OPERATOR = "you"
REASON = "the customer meant a lamp"
TIMEOUT = 15.0
INTERVAL = 0.1


async def rescue(redrive: Redrive, database: Database, scene: Scene, view: RunView) -> None:
    """Show the dead letter of a parked run and replay it with the scene's edit."""
    step = next((step.name for step in view.steps if step.status is StepStatus.DLQ), None)
    if step is None or scene.edit is None:
        return
    letter = LetterId(tenant=view.tenant, run_id=view.run_id, step=step)
    record = await _record(database, letter)
    _show(record)
    _say(f"You fix the input and replay the same run from {step!r} on:")
    words = " ".join(f"--set {name}={value}" for name, value in scene.edit.items())
    _say(f'  redrive dlq replay {record.run_id}/{step} {words} --reason "{REASON}"', style="cyan")
    answer = await redrive.dead_letters.replay(letter, requested_by=OPERATOR, reason=REASON, input_patch=scene.edit)
    if not answer.accepted:
        raise RedriveError(f"the replay was refused: {answer.message}")
    _say(f"  {answer.message}\n")


async def _record(database: Database, letter: LetterId) -> LetterRecord:
    """Wait for the record: it is written a moment after the run is parked."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            record = await get_letter(await database.pool(), letter.tenant, letter.workflow_id)
            if record:
                return record
            await asyncio.sleep(INTERVAL)


def _show(record: LetterRecord) -> None:
    tries = "1 attempt" if record.attempt_count == 1 else f"{record.attempt_count} attempts"
    _say("One run cannot heal by itself. It is parked, not lost: PostgreSQL has its dead letter.")
    _say(f"  {record.id}  {record.status}", style="bold")
    _say(f"  step   {record.step} of {record.pipeline}, after {tries}")
    _say(f"  error  {record.category}: {record.message}", style="red")
    _say(f"  input  {to_json(record.payload).decode()}")


def _say(line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)
