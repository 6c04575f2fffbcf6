"""The demo's story: a flaky shop, the runs with their expected outcomes, and an operator's rescue of one of them.

The shop is a real HTTP service whose answers depend on the item ordered. In the second part an operator reads a dead
letter, fixes the input and replays the run.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from rich.text import Text

from redrive import Redrive
from redrive.contracts import RunStatus, RunView, StepStatus
from redrive.dead_letters import LetterId
from redrive.errors import RedriveError
from redrive.examples.site import Answer, Request
from redrive.postgres.database import Database
from redrive.starter.cli.terminal import command_line, console
from redrive.store.dead_letters.lists import get_letter
from redrive.store.dead_letters.models import LetterRecord

HANG_SECONDS = 30
OPERATOR = "you"
REASON = "the customer meant a lamp"
TIMEOUT = 15.0
INTERVAL = 0.1


class Shop:
    """Answer requests; count them by key and by path."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()
        self._done: dict[str, Answer] = {}
        self._items: dict[str, str] = {}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        path, key = request.path, request.headers.get("idempotency-key", "")
        self.calls[path] += 1
        self._tries[key] += 1
        run = key.partition(":")[0]
        if path == "/reserve":
            self._items[run] = str(request.document.get("item", ""))
        if key in self._done:
            return self._done[key]
        trouble = _trouble(path, self._items.get(run, ""), self._tries[key])
        if trouble:
            return trouble
        self._done[key] = Answer(200, _result(path, key))
        return self._done[key]


def _trouble(path: str, item: str, tries: int) -> Answer | None:
    match path, item:
        case "/charge", "kettle" if tries <= 2:
            return Answer(503, {"error": "the card terminal is restarting"})
        case "/charge", "violin" if tries == 1:
            return Answer(429, {"error": "too many charges"}, {"Retry-After": "1"})
        case "/ship", "piano" if tries == 1:
            return Answer(200, {}, after=HANG_SECONDS)
        case "/reserve", "ghost":
            return Answer(400, {"error": "there is no item called 'ghost'"})
    return None


def _result(path: str, key: str) -> dict[str, Any]:
    number = key.partition(":")[0][-8:]
    match path:
        case "/reserve":
            return {"reservation_id": f"res-{number}", "price_cents": 1999}
        case "/charge":
            return {"charge_id": f"chg-{number}"}
        case _:
            return {"tracking_id": f"trk-{number}"}


@dataclass(frozen=True)
class Scene:
    """One run of the demo."""

    pipeline: str
    payload: dict[str, object]
    about: str
    edit: dict[str, object] | None = None

    @property
    def title(self) -> str:
        """The pipeline, and what is ordered."""
        return f"{self.pipeline} {self.payload.get('item', '')}".strip()


SCENES = (
    Scene("hello", {"name": "Ada"}, "one step, no service"),
    Scene("order", {"item": "lamp", "quantity": 1}, "three calls, all well"),
    Scene("order", {"item": "kettle", "quantity": 2}, "two 503s, then it recovers"),
    Scene("order", {"item": "violin", "quantity": 1}, "a 429: waits as long as the service asks"),
    Scene("order", {"item": "piano", "quantity": 1}, "a hang: cut off at the deadline, tried again"),
    Scene("order", {"item": "ghost", "quantity": 1}, "a 400: parked, edited, replayed", edit={"item": "lamp"}),
)


def at_rest(view: RunView) -> bool:
    """Tell whether a run has ended, or waits for an operator."""
    return view.status.closed or view.status is RunStatus.DLQ_PENDING


def replayed(view: RunView) -> bool:
    """Tell whether a run succeeded after one of its steps was a dead letter."""
    return view.status is RunStatus.SUCCESS and any(step.cycle > 1 for step in view.steps)


def healed(view: RunView) -> bool:
    """Tell whether a run succeeded after retries alone."""
    tried_again = any(step.attempt > 1 and step.status is StepStatus.SUCCESS for step in view.steps)
    return view.status is RunStatus.SUCCESS and tried_again and not replayed(view)


def as_told(views: list[RunView]) -> bool:
    """Tell whether every run succeeded, and those with an edit by their replay."""
    return all(
        view.status is RunStatus.SUCCESS and replayed(view) is (scene.edit is not None)
        for scene, view in zip(SCENES, views, strict=True)
    )


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
    _say(f'  {command_line()} dlq replay {record.run_id}/{step} {words} --reason "{REASON}"', style="cyan")
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
    _say("One run cannot recover by itself. It is parked, not lost: PostgreSQL has its dead letter.")
    _say(f"  {record.id}  {record.status}", style="bold")
    _say(f"  step   {record.step} of {record.pipeline}, after {tries}")
    _say(f"  error  {record.category}: {record.message}", style="red")
    _say(f"  input  {to_json(record.payload).decode()}")


def _say(line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)
