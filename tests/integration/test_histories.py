"""Today's workflow code replays the histories of runs, dead letters and bulk operations that yesterday's code made."""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.common import RawValue
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Interceptor, Replayer
from temporalio.workflow import NondeterminismError

from redrive.contracts import Workflow
from redrive.processes.temporal import workflow_runner
from redrive.worker import WORKFLOWS
from redrive.workflows.maintenance import RetrySweep

HISTORIES = sorted((Path(__file__).parents[1] / "histories").glob("*.json"))
RUNS = {
    "three_steps",
    "healed",
    "canceled",
    "started_by_name",
    "continued_1",
    "continued_2",
    "replayed",
    "replayed_soon",
    "replayed_long",
    "last_step_replayed",
    "last_step_replayed_together",
    "step_only_continued",
    "sent_back",
    "resolved",
    "discarded",
    "canceled_when_parked",
    "continued_when_parked_1",
    "continued_when_replayed_1",
    "continued_when_replayed_2",
    "edited",
    "reported_again",
    "by_hand",
    "fast",
    "fast_healed",
    "fast_and_long",
    "fast_replayed",
    "fast_again",
    "fast_kept",
    "fast_healing_kept",
    "fast_dozing_kept",
    "fast_replayed_kept",
    "fast_again_kept",
}
LETTERS = {"queue", "queue_hands_over", "queue_continued_1", "queue_continued_2", "letter_commanded_when_closed"}
OTHERS = {
    "alert",
    "alert_follow_up",
    "keys_swept",
    "key_recorded",
    "purged",
    "anchored",
    "letter_record_timed_out",
    "retry_sweep_1",
    "retry_sweep_2",
}
BULKS = {"bulk_replayed", "bulk_controlled", "bulk_refused", "bulk_continued_1", "bulk_continued_2"}


@workflow.defn(name=Workflow.MODULE_RUN, sandboxed=False)
class ChangedRun:
    """A run that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        await workflow.sleep(timedelta(seconds=1))


@workflow.defn(name=Workflow.DEAD_LETTER, sandboxed=False)
class ChangedLetter:
    """A dead letter that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        await workflow.sleep(timedelta(seconds=1))

    @workflow.signal(dynamic=True)
    def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take whatever is in the history."""

    @workflow.update(dynamic=True)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take whatever is in the history."""


@workflow.defn(name=Workflow.DEAD_LETTER_QUEUE, sandboxed=False)
class ChangedQueue(ChangedLetter):
    """A dead letter queue that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        await workflow.sleep(timedelta(seconds=1))


@workflow.defn(name=Workflow.EXPIRE_KEYS, sandboxed=False)
class ChangedKeySweep:
    """A sweep of keys that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(timedelta(seconds=1))


@workflow.defn(name=Workflow.PURGE_RECORDS, sandboxed=False)
class ChangedPurge(ChangedKeySweep):
    """A purge that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(timedelta(seconds=1))


@workflow.defn(name=Workflow.ANCHOR_AUDIT, sandboxed=False)
class ChangedAnchor(ChangedKeySweep):
    """An anchoring that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(timedelta(seconds=1))


@workflow.defn(name=Workflow.RETRY_SWEEP, sandboxed=False)
class ChangedRetrySweep:
    """A sweep of retries that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        await workflow.sleep(timedelta(seconds=1))


@workflow.defn(name=Workflow.RECORD_KEY, sandboxed=False)
class ChangedKeyRecord:
    """A record of a key that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        await workflow.sleep(timedelta(seconds=1))


@workflow.defn(name=Workflow.RAISE_ALERT, sandboxed=False)
class ChangedAlert:
    """An alert that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        await workflow.sleep(timedelta(seconds=1))


@workflow.defn(name=Workflow.BULK_REPLAY, sandboxed=False)
class ChangedBulk(ChangedLetter):
    """A bulk operation that begins with a wait, as no stored one did."""

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        await workflow.sleep(timedelta(seconds=1))


def history(file: Path) -> WorkflowHistory:
    """Read a stored history."""
    return WorkflowHistory.from_json(file.stem, file.read_text())


def test_there_is_a_history_of_every_kind() -> None:
    """None of the stored histories is lost unnoticed."""
    assert {file.stem for file in HISTORIES} >= RUNS | LETTERS | BULKS | OTHERS


@pytest.mark.parametrize("interceptors", [[], [TracingInterceptor()]], ids=["plain", "traced"])
@pytest.mark.parametrize("file", HISTORIES, ids=lambda file: file.stem)
async def test_a_stored_history_replays(file: Path, interceptors: list[Interceptor]) -> None:
    """The workflow code, sandbox and converter of the worker take the same decisions again, with traces and without."""
    replayer = Replayer(
        workflows=[*WORKFLOWS, RetrySweep],
        workflow_runner=workflow_runner(),
        data_converter=pydantic_data_converter,
        interceptors=interceptors,
    )
    result = await replayer.replay_workflow(history(file))
    assert result.replay_failure is None


@pytest.mark.parametrize("file", HISTORIES, ids=lambda file: file.stem)
async def test_a_changed_workflow_fails_the_replay(file: Path) -> None:
    """The check can fail: a workflow that begins with another command does not replay."""
    changed: list[type] = [
        ChangedRun,
        ChangedQueue,
        ChangedLetter,
        ChangedBulk,
        ChangedAlert,
        ChangedKeySweep,
        ChangedKeyRecord,
        ChangedPurge,
        ChangedAnchor,
        ChangedRetrySweep,
    ]
    replayer = Replayer(workflows=changed, data_converter=pydantic_data_converter)
    with pytest.raises(NondeterminismError):
        await replayer.replay_workflow(history(file))


def texts(value: Any) -> Iterator[str]:
    """Go through all texts of a history, those inside payloads included."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "data" and isinstance(inner, str):
                yield base64.b64decode(inner).decode()
            else:
                yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("file", HISTORIES, ids=lambda file: file.stem)
def test_a_stored_history_names_no_machine_and_no_directory(file: Path) -> None:
    """What is in the repository does not tell where it was recorded."""
    found = [
        text for text in texts(json.loads(file.read_text())) if re.search(r"\d+@|File \\?\"/|/(?:root|home)/", text)
    ]
    assert found == []
