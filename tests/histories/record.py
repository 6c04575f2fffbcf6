"""Record the stored histories: `python -m tests.histories.record`, in a fresh server of its own.

Record a history anew only when it can no longer happen. A change of workflow code that fails the replay of an old one
needs `workflow.patched`, and a new history beside the old.
"""

import asyncio
import base64
import contextlib
import json
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowHistory
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from redrive import ModuleContext, Pipeline, Redrive, Registry, StepStatus, Terminal, Transient
from redrive.contracts import ClaimRequest, RunStatus, SearchAttribute, Workflow
from redrive.dead_letter_queue import queue_id
from redrive.dead_letters import COMMANDS, Answer, LetterId, Mode, RunSignal, Verb
from redrive.keys import run_id_for_key
from redrive.logs import configure_logging
from redrive.modules import Module
from redrive.settings import AlertSettings, Settings
from redrive.starter.stack.stack import Stack
from redrive.starter.stack.temporal_server import find_temporal
from redrive.worker import running_worker
from redrive.workflows.step_execution import FIRST_TASK
from tests.conftest import eventually
from tests.integration.dead_letters.processes import stopped
from tests.integration.runs.samples import Number, ended, milliseconds, quick

HERE = Path(__file__).parent
TASK_QUEUE = "histories"
# Few enough for eight short steps, or some refused orders, to be "long".
EVENTS_BEFORE_CONTINUE = 22
LONGER_THAN_LISTED_AFTER = 11.0
MACHINE = re.compile(r"^\d+@.*")
DIRECTORIES_OF_A_FILE = re.compile(rb"/(?:[\w.+-]+/)+(?=[\w-]+\.py)")


class Waiting(BaseModel):
    """Nothing to read."""


def _registry(broken: set[str]) -> Registry:
    registry = Registry()

    def add(name: str) -> Module[Number, Number]:
        @registry.module(name, policy=quick(base=milliseconds(10), timeout=5))
        async def count(ctx: ModuleContext, given: Number) -> Number:
            if name in broken:
                raise Terminal(f"{name} is broken")
            return Number(n=given.n + 1)

        return count

    @registry.module("flaky", policy=quick(base=milliseconds(10), timeout=5))
    async def flaky(ctx: ModuleContext, given: Number) -> Number:
        if ctx.attempt < 3:
            raise Transient(f"try {ctx.attempt}")
        return given

    @registry.module("patient", policy=quick(base=milliseconds(60_000), cap=milliseconds(60_000)))
    async def patient(ctx: ModuleContext, given: Waiting) -> Number:
        raise Transient("later")

    @registry.module("doze", policy=quick(timeout=5))
    async def doze(ctx: ModuleContext, given: Number) -> Number:
        await asyncio.sleep(4)
        return given

    @registry.module("yawn", policy=quick(timeout=5))
    async def yawn(ctx: ModuleContext, given: Number) -> Number:
        await asyncio.sleep(4.5)
        return given

    @registry.module("snore", policy=quick(timeout=15))
    async def snore(ctx: ModuleContext, given: Number) -> Number:
        if "snore" in broken:
            raise Terminal("too noisy")
        await asyncio.sleep(LONGER_THAN_LISTED_AFTER)
        return given

    steps = [add(f"count-{number}") for number in range(1, 9)]
    Pipeline("three", *steps[:3], registry=registry)
    Pipeline("healing", steps[0], flaky, steps[1], registry=registry)
    Pipeline("waiting", steps[0], patient, steps[1], registry=registry)
    Pipeline("sleepy", snore, steps[0], registry=registry)
    Pipeline("long", *steps, registry=registry)
    Pipeline("fast", *steps[:3], fast=True, registry=registry)
    Pipeline("fast-healing", steps[0], flaky, steps[1], fast=True, registry=registry)
    Pipeline("fast-dozing", doze, yawn, *steps[:2], fast=True, registry=registry)
    return registry


@dataclass
class Recorder:
    """Makes things happen on a server, and keeps what happened."""

    redrive: Redrive
    client: Client
    postgres: int
    broken: set[str] = field(default_factory=set)

    async def start(self, pipeline: str, key: str) -> str:
        """Start a run."""
        return (await self.redrive.start(pipeline, {"n": 1}, key=f"history-of-{key}")).run_id

    async def until(self, run_id: str, status: RunStatus) -> None:
        """Wait until a run has a status."""

        async def has() -> bool:
            return (await self.redrive.status(run_id)).status is status

        await eventually(has)

    async def park(self, key: str, *broken: str, pipeline: str = "three") -> str:
        """Start a run whose given steps are broken, and wait until it is parked."""
        self.broken.update(broken)
        run_id = await self.start(pipeline, key)
        await self.until(run_id, RunStatus.DLQ_PENDING)
        await self.until_reported(LetterId(tenant="default", run_id=run_id, step=sorted(broken)[0]))
        return run_id

    async def until_reported(self, letter: LetterId) -> None:
        """Wait until a dead letter's record is there, or its workflow, which writes it later."""
        handle = self.client.get_workflow_handle(letter.workflow_id)

        async def is_there() -> bool:
            with contextlib.suppress(RPCError):
                return (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
            queue = self.client.get_workflow_handle(queue_id("default", TASK_QUEUE, self.client.identity))
            history = await queue.fetch_history()
            told = [event.workflow_execution_signaled_event_attributes.input for event in history.events]
            return any(letter.run_id.encode() in each.SerializeToString() for each in told) and _has_written(history)

        await eventually(is_there)

    def queue(self) -> WorkflowHandle[Any, Any]:
        """Return the dead letter queue that all runs report to."""
        return self.client.get_workflow_handle(queue_id("default", TASK_QUEUE, self.client.identity))

    def mend(self) -> None:
        """Let all steps work."""
        self.broken.clear()

    async def command(self, verb: Verb, run_id: str, step: str = "count-2", **fields: object) -> Answer:
        """Give a command, when its dead letter is there."""
        wording = {"request_id": f"{verb}-{step}-{len(fields)}", "requested_by": "ada", "reason": "a history"}
        command: Any = COMMANDS.validate_python({"verb": verb, **wording, **fields})
        letter = LetterId(tenant="default", run_id=run_id, step=step)

        return await self.redrive.dead_letters.send(letter, command)

    async def keep(self, name: str, workflow_id: str) -> None:
        """Store the histories of all parts of a workflow, first to last."""
        parts: list[str] = []
        description = await self.client.get_workflow_handle(workflow_id).describe()
        execution: str | None = description.raw_description.workflow_execution_info.first_run_id
        while execution:
            history = await self.client.get_workflow_handle(workflow_id, run_id=execution).fetch_history()
            parts.append(history.to_json())
            last = history.events[-1]
            execution = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
        for number, part in enumerate(parts, 1):
            file = HERE / (f"{name}.json" if len(parts) == 1 else f"{name}_{number}.json")
            file.write_text(scrubbed(part))
            print(file.name)

    async def keep_ended(self, name: str, run_id: str) -> None:
        """Store a run when it has ended."""
        await ended(self.redrive, run_id)
        await self.keep(name, run_id)


def _has_written(history: WorkflowHistory) -> bool:
    """Tell whether a queue has dealt with all that it was signalled."""
    kinds = [event.event_type for event in history.events]
    last = max(place for place, kind in enumerate(kinds) if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
    return EventType.EVENT_TYPE_MARKER_RECORDED in kinds[last:]


async def _plain(recorder: Recorder) -> None:
    for name, pipeline in (("three_steps", "three"), ("healed", "healing")):
        run_id = await recorder.start(pipeline, name)
        await ended(recorder.redrive, run_id)
        await recorder.keep(name, run_id)


async def _canceled(recorder: Recorder) -> None:
    run_id = await recorder.start("waiting", "waiting")

    async def waits() -> bool:
        return any(step.status is StepStatus.RETRYING for step in (await recorder.redrive.status(run_id)).steps)

    await eventually(waits)
    await recorder.redrive.cancel(run_id, reason="enough")
    await ended(recorder.redrive, run_id)
    await recorder.keep("canceled", run_id)


async def _by_name(recorder: Recorder) -> None:
    command = {"pipeline": "three", "payload": {"n": 1}}
    await recorder.client.start_workflow("ModuleRun", command, id="run-by-name", task_queue=TASK_QUEUE)
    await ended(recorder.redrive, "run-by-name")
    await recorder.keep("started_by_name", "run-by-name")


async def _replayed(recorder: Recorder) -> None:
    """Replayed while it is still broken, then with an edit and another policy when it is mended."""
    run_id = await recorder.park("replayed", "count-2")
    await _replayed_in_vain_then(recorder, run_id, input_patch={"n": 5}, policy={"max_attempts": 2})
    await recorder.keep_ended("replayed", run_id)


async def _replayed_in_vain_then(recorder: Recorder, run_id: str, **changes: Any) -> None:
    await _accepted(recorder.command(Verb.REPLAY, run_id, request_id="first"))

    async def exhausted_again() -> bool:
        view = await recorder.redrive.status(run_id)
        return view.status is RunStatus.DLQ_PENDING and view.steps[1].cycle == 2

    await eventually(exhausted_again)
    recorder.mend()

    async def taken() -> bool:
        # Until the letter knows of the second cycle, the first replay is under way for it.
        return (await recorder.command(Verb.REPLAY, run_id, request_id=_fresh(), **changes)).accepted

    await eventually(taken)


async def _listed_later(recorder: Recorder) -> None:
    """Replayed in vain, then with success, both soon over; and one that is listed as running while it runs.

    In older histories, each replay is listed at once.
    """
    run_id = await recorder.park("replayed-soon", "count-2")
    await _replayed_in_vain_then(recorder, run_id)
    await recorder.keep_ended("replayed_soon", run_id)
    run_id = await recorder.park("replayed-long", "snore", pipeline="sleepy")
    recorder.mend()
    await _accepted(recorder.command(Verb.REPLAY, run_id, step="snore"))
    await recorder.keep_ended("replayed_long", run_id)


async def _last_step_replayed(recorder: Recorder) -> None:
    """The dead letter of the last step: its outcome and the run's end are one report.

    In `last_step_replayed`, which is older, they are two.
    """
    run_id = await recorder.park("last-step-replayed", "count-3")
    recorder.mend()
    await _accepted(recorder.command(Verb.REPLAY, run_id, step="count-3"))
    await ended(recorder.redrive, run_id)
    await recorder.keep_ended("last_step_replayed_together", run_id)


async def _step_only(recorder: Recorder) -> None:
    run_id = await recorder.park("step-only", "count-2")
    recorder.mend()
    await _accepted(recorder.command(Verb.REPLAY, run_id, mode=Mode.STEP_ONLY))
    await recorder.until(run_id, RunStatus.PARTIAL)
    answer = await recorder.redrive.dead_letters.go_on(run_id, requested_by="ada", reason="a history")
    assert answer.accepted, answer
    await recorder.keep_ended("step_only_continued", run_id)


async def _sent_back(recorder: Recorder) -> None:
    """Sent back to the first step, which is dead now: the later letter waits, then both close."""
    run_id = await recorder.park("sent-back", "count-3")
    recorder.broken.add("count-1")
    await _accepted(recorder.command(Verb.REPLAY, run_id, "count-3", from_step="count-1"))

    async def blocked() -> bool:
        view = await recorder.redrive.status(run_id)
        return view.status is RunStatus.DLQ_PENDING and view.steps[0].status is StepStatus.DLQ

    await eventually(blocked)
    recorder.mend()
    await _accepted(recorder.command(Verb.REPLAY, run_id, "count-1"))
    await recorder.keep_ended("sent_back", run_id)


async def _resolved(recorder: Recorder) -> None:
    """Resolved; a command to the closed letter is answered by a workflow that reads the record."""
    run_id = await recorder.park("resolved", "count-2")
    await _accepted(recorder.command(Verb.RESOLVE, run_id, output={"n": 7}))
    await recorder.keep_ended("resolved", run_id)
    late = await recorder.command(Verb.REPLAY, run_id, request_id="late")
    assert not late.accepted, late
    letter = recorder.client.get_workflow_handle(LetterId(tenant="default", run_id=run_id, step="count-2").workflow_id)
    await letter.result()
    await recorder.keep("letter_commanded_when_closed", letter.id)
    recorder.mend()


async def _discarded(recorder: Recorder) -> None:
    """Orders that are refused: unreadable, with a wrong step, with an edit that does not fit. Then discarded."""
    run_id = await recorder.park("discarded", "count-2")
    await recorder.queue().signal("replay", "nonsense")
    for wrong in ({"from_step": "count-3"}, {"input_patch": {"n": "many"}}):
        answer = await recorder.command(Verb.REPLAY, run_id, request_id=_fresh(), **wrong)
        assert not answer.accepted, answer
    # To the queue instead of the run: it does the same thing.
    command = {"request_id": "to-the-queue", "requested_by": "ada", "reason": "a history"}
    await recorder.queue().signal("discard", command | {"run_id": run_id, "step": "count-2"})
    await recorder.keep_ended("discarded", run_id)
    await recorder.keep("queue", recorder.queue().id)
    recorder.mend()


async def _canceled_when_parked(recorder: Recorder) -> None:
    run_id = await recorder.park("canceled-when-parked", "count-2")
    await recorder.redrive.cancel(run_id, reason="enough")
    await recorder.keep_ended("canceled_when_parked", run_id)
    recorder.mend()


async def _reported_again(recorder: Recorder) -> None:
    """Its queue was terminated: the run is asked to report again, which starts another one, and is replayed."""
    run_id = await recorder.park("reported-again", "count-2")
    await recorder.queue().terminate()
    await recorder.client.get_workflow_handle(run_id).signal(RunSignal.REPORT)

    async def is_open() -> bool:
        return (await recorder.queue().describe()).status is WorkflowExecutionStatus.RUNNING

    await eventually(is_open)
    recorder.mend()
    await _accepted(recorder.command(Verb.REPLAY, run_id))
    await recorder.keep_ended("reported_again", run_id)


async def _record_timed_out(recorder: Recorder) -> None:
    """PostgreSQL does not answer in time. Rebuilt from history, that is another error than at first."""
    with stopped(recorder.postgres):
        run_id = await recorder.park("record-timed-out", "count-2")
        letter = LetterId(tenant="default", run_id=run_id, step="count-2")
        handle = recorder.client.get_workflow_handle(letter.workflow_id)

        async def is_tried_elsewhere() -> bool:
            history = await handle.fetch_history()
            return any(event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED for event in history.events)

        await eventually(is_tried_elsewhere)
    await handle.result()
    await recorder.keep("letter_record_timed_out", letter.workflow_id)
    await recorder.keep("queue_hands_over", recorder.queue().id)
    await _accepted(recorder.command(Verb.DISCARD, run_id))
    recorder.mend()


async def _followed_up(recorder: Recorder) -> None:
    """Failures that look alike: the alert of the first holds the others back, and its follow-up tells of them."""
    run_ids = [await recorder.park(f"follow-up-{number}", "count-2") for number in range(3)]
    query = f"WorkflowType = '{Workflow.RAISE_ALERT}' AND ExecutionStatus = 'Completed'"

    async def told() -> dict[int, str] | None:
        found = [execution.id async for execution in recorder.client.list_workflows(query)]
        raised = {await _activities(recorder.client, name): name for name in found}
        return raised if raised.keys() == {1, 2} else None

    for count, name in (await eventually(told)).items():
        await recorder.keep("alert" if count == 1 else "alert_follow_up", name)
    for run_id in run_ids:
        await _accepted(recorder.command(Verb.DISCARD, run_id))
    recorder.mend()


async def _continued(recorder: Recorder) -> None:
    run_id = await recorder.start("long", "long")
    await ended(recorder.redrive, run_id)
    await recorder.keep("continued", run_id)


async def _parked_and_continued(recorder: Recorder) -> None:
    """Refused so often, by the run and through the queue, that both histories are cut short, then replayed."""
    run_id = await recorder.park("letter-continued", "count-2")
    for _ in range(8):
        answer = await recorder.command(Verb.REPLAY, run_id, request_id=_fresh(), from_step="count-3")
        assert not answer.accepted, answer
        await recorder.queue().signal("replay", "nonsense")
    recorder.mend()
    await _accepted(recorder.command(Verb.REPLAY, run_id))
    await recorder.keep_ended("continued_when_parked", run_id)
    await recorder.keep("queue_continued", recorder.queue().id)


async def _replayed_and_continued(recorder: Recorder) -> None:
    """Replayed, and long before it ends: it is listed as running when its history is cut short."""
    run_id = await recorder.park("replayed-and-continued", "count-2", pipeline="long")
    recorder.mend()
    await _accepted(recorder.command(Verb.REPLAY, run_id))
    await recorder.keep_ended("continued_when_replayed", run_id)


async def _activities(client: Client, workflow_id: str) -> int:
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    return [event.event_type for event in history.events].count(EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)


_numbers = iter(range(1_000_000))


def _fresh() -> str:
    return f"request-{next(_numbers)}"


async def _accepted(asked: Awaitable[Answer]) -> None:
    answer = await asked
    assert answer.accepted, answer


async def _swept(recorder: Recorder) -> None:
    """The sweep over keys, as the schedule starts it."""
    await recorder.client.execute_workflow(Workflow.EXPIRE_KEYS, id="sweep", task_queue=TASK_QUEUE)
    await recorder.keep("keys_swept", "sweep")


async def _key_recorded(recorder: Recorder) -> None:
    """A key that was used while PostgreSQL did not answer: its row is written by another worker, later."""
    request = ClaimRequest(
        tenant="default",
        key="recorded",
        run_id=run_id_for_key("default", "recorded", 0),
        pipeline="long",
        expires_at=datetime(2100, 1, 1, tzinfo=UTC),
    )
    with stopped(recorder.postgres):
        handle = await recorder.client.start_workflow(
            Workflow.RECORD_KEY, request, id="record-key", task_queue=TASK_QUEUE
        )

        async def is_asked_elsewhere() -> bool:
            return bool((await handle.describe()).raw_description.pending_activities)

        await eventually(is_asked_elsewhere)
    await handle.result()
    await recorder.keep("key_recorded", "record-key")


async def _edited(recorder: Recorder) -> None:
    """A run with a key whose dead step is replayed with an edit: its calls have other keys then."""
    run_id = await recorder.park("edited", "count-2")
    recorder.mend()
    await _accepted(recorder.command(Verb.REPLAY, run_id, input_patch={"n": 5}))
    await ended(recorder.redrive, run_id)
    await recorder.keep("edited", run_id)


async def _by_hand(recorder: Recorder) -> None:
    """Commands sent to the run by hand: an unreadable one, one that waits for the database, and an update."""
    run_id = await recorder.park("by-hand", "count-2")
    run = recorder.client.get_workflow_handle(run_id)
    await run.signal(Verb.REPLAY, "nonsense")
    command = {"request_id": "by-hand", "requested_by": "eve", "reason": "a history"}
    with stopped(recorder.postgres):
        await run.signal(Verb.REPLAY, command)

        async def is_asked_elsewhere() -> bool:
            return bool((await run.describe()).raw_description.pending_activities)

        await eventually(is_asked_elsewhere)

    async def is_parked_again() -> bool:
        view = await recorder.redrive.status(run_id)
        return view.status is RunStatus.DLQ_PENDING and view.steps[1].cycle == 2

    await eventually(is_parked_again)
    recorder.mend()
    await _accepted(run.execute_update(Verb.REPLAY, command | {"request_id": "update"}, result_type=Answer))
    await ended(recorder.redrive, run_id)
    await recorder.keep_ended("by_hand", run_id)


async def _fast(recorder: Recorder) -> None:
    """Steps inside the workflow task: all of them, until one fails, for longer than a task, until one is dead.

    `kept`: the worker keeps the run's end. The histories of runs that reported it by a local activity stay beside them.
    """
    for pipeline in ("fast", "fast-healing", "fast-dozing"):
        run_id = await recorder.start(pipeline, pipeline)
        await recorder.redrive.result(run_id)
        await recorder.keep(f"{pipeline.replace('-', '_')}_kept", run_id)
    run_id = await recorder.park("fast-replayed", "count-2", pipeline="fast")
    recorder.mend()
    await _accepted(recorder.command(Verb.REPLAY, run_id))
    await ended(recorder.redrive, run_id)
    await recorder.keep("fast_replayed_kept", run_id)


async def _fast_again(recorder: Recorder) -> None:
    """A signal comes while the last steps are inside the workflow task: Temporal refuses the task, they run again."""
    run_id = await recorder.start("fast-dozing", "fast-again")
    handle = recorder.client.get_workflow_handle(run_id)

    async def is_in_the_last_task() -> bool:
        return (await handle.describe()).history_length > FIRST_TASK

    await eventually(is_in_the_last_task)
    await handle.signal(RunSignal.REPORT)
    await ended(recorder.redrive, run_id)
    await recorder.keep("fast_again_kept", run_id)


async def _looked_after(recorder: Recorder) -> None:
    """The purge, and the heads of the audit log, as schedules start them."""
    for name, workflow in (("purged", Workflow.PURGE_RECORDS), ("anchored", Workflow.ANCHOR_AUDIT)):
        await recorder.client.execute_workflow(workflow, id=name, task_queue=TASK_QUEUE)
        await recorder.keep(name, name)


Scene = Callable[[Recorder], Awaitable[None]]
SCENES: list[Scene] = [
    _plain,
    _canceled,
    _by_name,
    _replayed,
    _listed_later,
    _last_step_replayed,
    _step_only,
    _sent_back,
    _resolved,
    _discarded,
    _canceled_when_parked,
    _edited,
    _swept,
    _key_recorded,
    _reported_again,
    _record_timed_out,
    _followed_up,
    _by_hand,
    _looked_after,
    _fast,
    _fast_again,
]
LONG_SCENES: list[Scene] = [_continued, _parked_and_continued, _replayed_and_continued]


@contextlib.asynccontextmanager
async def recording(*words: str) -> AsyncIterator[Recorder]:
    """A fresh server and database, with a worker."""
    environment = await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=str(find_temporal()),
        dev_server_extra_args=list(words),
        search_attributes=[SearchAttributeKey.for_keyword(name) for name in SearchAttribute],
    )
    broken: set[str] = set()
    registry = _registry(broken)
    async with environment:
        client = environment.client
        settings = Settings(
            temporal_address=client.service_client.config.target_host,
            task_queue=TASK_QUEUE,
            alerts=AlertSettings(window=timedelta(seconds=1)),
        )
        with tempfile.TemporaryDirectory() as directory:
            # PostgreSQL does not run as root: its account has to get through here.
            Path(directory).chmod(0o711)
            async with Stack(settings, state_dir=Path(directory) / "state", workers=0) as stack:
                complete = settings.model_copy(update={"database_url": stack.info.database_url})
                async with running_worker(complete, registry):
                    redrive = Redrive(client, task_queue=TASK_QUEUE, registry=registry)
                    yield Recorder(redrive, client, stack.info.children["postgres"], broken)


def scrubbed(text: str) -> str:
    """Return a history without the names of the machine and of its directories."""
    return json.dumps(_without_identity(json.loads(text)), indent=1) + "\n"


def _without_identity(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_identity(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _scrubbed_member(name, inner) for name, inner in value.items()}
    return MACHINE.sub("worker", value) if isinstance(value, str) else value


def _scrubbed_member(name: str, value: Any) -> Any:
    match name:
        case "identity":
            return "redrive"
        case "stackTrace":
            return ""
        case "data" if isinstance(value, str):
            return base64.b64encode(DIRECTORIES_OF_A_FILE.sub(b"", base64.b64decode(value))).decode()
        case _:
            return _without_identity(value)


async def main() -> None:
    """Write all histories."""
    configure_logging("error")
    async with recording() as recorder:
        for scene in SCENES:
            await scene(recorder)
    suggestion = f"limit.historyCount.suggestContinueAsNew={EVENTS_BEFORE_CONTINUE}"
    async with recording("--dynamic-config-value", suggestion) as recorder:
        for scene in LONG_SCENES:
            await scene(recorder)


if __name__ == "__main__":
    asyncio.run(main())
