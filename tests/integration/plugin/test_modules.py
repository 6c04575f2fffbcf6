"""Modules inside plain workflows, on Redrive's worker and on a project's own."""

import asyncio
import dataclasses
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.worker import Replayer, Worker

from redrive import Redrive
from redrive.contracts import RunStatus
from redrive.dead_letters import LetterStatus
from redrive.payloads import data_converter
from redrive.plugin import DeadLetters
from redrive.plugin.interceptors import ParkingInterceptor
from redrive.processes.temporal import workflow_runner
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.worker import HOSTED, running_worker
from redrive.workflow import run_module
from tests.conftest import eventually, owner_url
from tests.histories.record import scrubbed
from tests.integration.plugin import module_project as modules
from tests.integration.plugin.lab import Project, id_of
from tests.integration.plugin.test_histories import STORED, events


def hosted_replayer() -> Replayer:
    """Return what rebuilds workflows of Redrive's worker."""
    return Replayer(
        workflows=modules.WORKFLOWS,
        interceptors=[ParkingInterceptor(HOSTED)],
        workflow_runner=workflow_runner(),
        data_converter=data_converter,
    )


@dataclasses.dataclass
class Modules(Project):
    """A project whose workflows call modules."""

    world: modules.Outside = dataclasses.field(default_factory=modules.Outside)
    replayer: Replayer = dataclasses.field(default_factory=hosted_replayer)

    def __post_init__(self) -> None:
        modules.CASES[self.case] = self.world

    def user(self, **fields: Any) -> dict[str, Any]:
        """Return a user of this case."""
        return {"case": self.case} | fields

    async def replays(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Rebuild a workflow from its history."""
        await self.replayer.replay_workflow(await handle.fetch_history())


@pytest.fixture
async def hosted(settings: Settings, temporal: Client, stack: StackInfo) -> AsyncIterator[Modules]:
    """Redrive's worker with the modules, and with the workflows."""
    async with running_worker(settings, modules.REGISTRY):
        redrive = Redrive(temporal, task_queue=settings.task_queue, registry=modules.REGISTRY)
        plugin = DeadLetters(["*"])
        yield Modules(temporal, redrive, owner_url(stack), plugin, queue=settings.task_queue)


@pytest.fixture
async def users(hosted: Modules, stack: StackInfo) -> AsyncIterator[Modules]:
    """A project with its own worker, in the sandbox, whose modules Redrive's worker runs."""
    plugin = DeadLetters([], task_queue=hosted.queue, tenant_memo="tenant")
    client = await Client.connect(stack.temporal_address, plugins=[plugin])
    replayer = Replayer(workflows=modules.WORKFLOWS, plugins=[plugin])
    made = Modules(client, hosted.redrive, hosted.database_url, plugin, replayer=replayer)
    async with Worker(client, task_queue=made.queue, workflows=modules.WORKFLOWS, build_id="tests"):
        yield made


async def test_modules_run_at_once_with_their_own_policies(hosted: Modules) -> None:
    """Nothing but the activities is in the history of a workflow whose modules succeed in the end."""
    handle = await hosted.start(modules.Onboarding.run, hosted.user())
    assert await handle.result() == ["ada, 36", 1, 360]
    kinds = [event["eventType"] for event in await events(handle)]
    assert not [kind for kind in kinds if "MARKER" in kind or "UPSERT" in kind]
    assert kinds.count("EVENT_TYPE_ACTIVITY_TASK_SCHEDULED") == 2
    assert [attempt for name, _, attempt in hosted.world.calls if name == "check-credit"] == [1, 2]
    assert await hosted.letters(handle) == []
    await hosted.replays(handle)


async def test_each_call_has_its_own_key_that_attempts_share(hosted: Modules) -> None:
    """Also when the workflow's id is used again."""
    first = await hosted.start(modules.Loop.run, hosted.case, 3, id=f"loop-{hosted.case}")
    assert await first.result() == [0, 1, 2]
    again = await hosted.start(modules.Loop.run, hosted.case, 3, id=f"loop-{hosted.case}")
    await again.result()
    keys = hosted.world.keys("count")
    assert len(set(keys)) == 6
    assert keys[:3] == [f"{first.first_execution_run_id}:count.{turn}:run" for turn in (1, 2, 3)]
    await hosted.start(modules.Onboarding.run, hosted.user())
    await eventually(lambda: _called(hosted, "check-credit", 2))
    assert len(set(hosted.world.keys("check-credit"))) == 1


async def test_fast_modules_share_a_workflow_task(hosted: Modules) -> None:
    """As in a pipeline: no activity is scheduled."""
    handle = await hosted.start(modules.Loop.run, hosted.case, 5)
    assert await handle.result() == [0, 1, 2, 3, 4]
    kinds = [event["eventType"] for event in await events(handle)]
    assert "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED" not in kinds
    assert kinds.count("EVENT_TYPE_WORKFLOW_TASK_COMPLETED") == 1
    await hosted.replays(handle)


async def test_an_exhausted_module_parks_and_its_record_tells_of_each_attempt(hosted: Modules) -> None:
    """Hidden fields are hidden; the replay has the same key; the other module of the gather is not run again."""
    hosted.world.broken = {"fetch-profile"}
    handle = await hosted.start(modules.Onboarding.run, hosted.user())
    [letter] = await hosted.parked(handle)
    assert (letter["module"], letter["pipeline"], letter["category"]) == ("fetch-profile", "Onboarding", "unknown")
    assert [attempt["attempt"] for attempt in letter["failure_history"][0]["attempts"]] == [1, 2, 3, 4]
    assert letter["message"] == "fetch-profile is away, password=[redacted]"
    assert letter["payload"] == hosted.user(name="ada", age=36, note="[redacted]")
    assert (letter["config"]["kind"], letter["config"]["max_attempts"]) == ("module", 4)
    assert (await hosted.command(letter, "replay")).accepted
    [again] = await hosted.parked(handle, cycle=2)
    hosted.world.broken = set()
    assert (await hosted.command(again, "replay")).accepted
    assert await handle.result() == ["ada, 36", 1, 360]
    await hosted.closed(handle, LetterStatus.REPLAYED)
    assert len(hosted.world.keys("check-credit")) == 2
    assert len(set(hosted.world.keys("fetch-profile"))) == 1
    await hosted.replays(handle)


async def test_edits_and_policies_are_checked_and_carried_out(hosted: Modules) -> None:
    """What does not fit is refused with a sentence; another input has another key."""
    hosted.world.broken = {"fetch-profile"}
    handle = await hosted.start(modules.Onboarding.run, hosted.user())
    [letter] = await hosted.parked(handle)
    refusals: dict[str, dict[str, Any]] = {
        "input_patch.agee: 'fetch-profile' reads no such field": {"input_patch": {"agee": 1}},
        "input_patch: the edited input does not fit 'fetch-profile': age": {"input_patch": {"age": "old"}},
        "policy: max_attempts": {"policy": {"max_attempts": 0}},
        "mode and from_step are for pipelines": {"mode": "STEP_ONLY"},
    }
    for sentence, fields in refusals.items():
        answer = await hosted.command(letter, "replay", **fields)
        assert (answer.accepted, answer.message[: len(sentence)]) == (False, sentence)
    assert (await hosted.command(letter, "replay", policy={"max_attempts": 1})).accepted
    [again] = await hosted.parked(handle, cycle=2)
    assert len(again["failure_history"][1]["attempts"]) == 1
    hosted.world.broken = set()
    assert (await hosted.command(again, "replay", input_patch={"age": 7})).accepted
    assert await handle.result() == ["ada, 7", 1, 360]
    assert len(set(hosted.world.keys("fetch-profile"))) == 2
    await hosted.replays(handle)


async def test_a_result_that_fits_lets_the_workflow_go_on(hosted: Modules) -> None:
    """It is completed as the module's own output would be; one that does not fit is refused."""
    hosted.world.broken = {"fetch-profile"}
    handle = await hosted.start(modules.Onboarding.run, hosted.user())
    [letter] = await hosted.parked(handle)
    answer = await hosted.command(letter, "resolve", output={"nam": "x"})
    assert (answer.accepted, "does not fit what 'fetch-profile' returns: name" in answer.message) == (False, True)
    assert (await hosted.command(letter, "resolve", output={"name": "by hand"})).accepted
    assert await handle.result() == ["by hand", 1, 360]
    await hosted.closed(handle, LetterStatus.RESOLVED)
    await hosted.replays(handle)


async def test_a_discard_raises_the_error_and_compensation_runs(hosted: Modules) -> None:
    """The workflow's own code decides what comes next, with modules too."""
    hosted.world.broken = {"fetch-profile"}
    handle = await hosted.start(modules.Onboarding.run, hosted.user())
    [letter] = await hosted.parked(handle)
    request = uuid.uuid4().hex
    answers = [await hosted.command(letter, "discard", request_id=request) for _ in range(2)]
    assert [answer.accepted for answer in answers] == [True, True]
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert str(failed.value.cause) == "Undone: undone 0"
    await hosted.closed(handle, LetterStatus.DISCARDED)
    await hosted.replays(handle)


async def test_a_fast_module_that_fails_parks_as_any_other(hosted: Modules) -> None:
    """Its first attempt counts."""
    hosted.world.broken = {"count"}
    handle = await hosted.start(modules.Loop.run, hosted.case, 2)
    [letter] = await hosted.parked(handle)
    assert len(letter["failure_history"][0]["attempts"]) == 4
    hosted.world.broken = set()
    assert (await hosted.command(letter, "replay")).accepted
    assert await handle.result() == [0, 1]
    await hosted.replays(handle)


async def test_errors_are_raised_where_the_code_wants_them_and_a_canceled_workflow_cleans_up(hosted: Modules) -> None:
    """Modules also run in signal handlers, and after the cancellation."""
    handle = await hosted.start(modules.Careful.run, hosted.user())
    await handle.signal(modules.Careful.look, hosted.user(name="bob"))

    async def has_both() -> bool:
        return await handle.query(modules.Careful.count) == 2

    await eventually(has_both)
    await handle.cancel()
    assert sorted(await handle.result()) == ["ada, 36", "bob, 36", "refused"]
    assert await hosted.letters(handle) == []
    await hosted.replays(handle)


async def test_a_canceled_workflow_closes_the_dead_letters_of_its_modules(hosted: Modules) -> None:
    """As with activities."""
    hosted.world.broken = {"fetch-profile"}
    handle = await hosted.start(modules.Onboarding.run, hosted.user())
    await hosted.parked(handle)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    await hosted.closed(handle, LetterStatus.DISCARDED)
    await hosted.replays(handle)


async def test_pipelines_beside_such_workflows_park_as_ever(hosted: Modules) -> None:
    """A pipeline run is left alone by what lets workflows park."""
    hosted.world.broken = {"fetch-profile"}
    run_id = (await hosted.redrive.start("profiles", hosted.user())).run_id
    handle = hosted.client.get_workflow_handle(run_id)
    [letter] = await hosted.parked(handle)
    assert letter["step"] == "fetch-profile"
    hosted.world.broken = set()
    assert (await hosted.command(letter, "replay")).accepted
    assert (await hosted.redrive.result(run_id)).status is RunStatus.SUCCESS


async def test_a_project_s_own_worker_has_modules_run_by_redrive_s(users: Modules) -> None:
    """In Temporal's sandbox, without the code's database or converter; its tenant is the workflow's."""
    users.world.broken = {"fetch-profile"}
    handle = await users.start(modules.Onboarding.run, users.user(), memo={"tenant": "acme"})
    [letter] = await users.parked(handle)
    assert (letter["tenant"], letter["payload"]["note"]) == ("acme", "[redacted]")
    assert letter["config"]["code_line"].endswith(" Onboarding.run")
    users.world.broken = set()
    assert id_of(letter).execution == handle.first_execution_run_id
    assert (await users.command(letter, "replay", input_patch={"age": 7})).accepted
    assert await handle.result() == ["ada, 7", 1, 360]
    await users.replays(handle)
    fast = await users.start(modules.Loop.run, users.case, 2)
    assert await fast.result() == [0, 1]


async def test_without_the_plugin_the_workflow_task_says_what_is_missing(hosted: Modules) -> None:
    """The workflow waits: with the plugin it goes on."""
    with pytest.raises(RuntimeError, match=r"run_module\('count'\).*add the plugin"):
        await run_module(modules.count, {"case": "", "turn": 0})


@pytest.mark.parametrize("name", ["replayed", "edited", "resolved", "discarded", "fast", "canceled"])
async def test_stored_histories_of_modules_replay(name: str) -> None:
    """Workflows with modules that were parked in earlier releases go on with this one."""
    history = WorkflowHistory.from_json("stored", (STORED / f"module_{name}.json").read_text())
    await hosted_replayer().replay_workflow(history)


@pytest.mark.skipif("REDRIVE_RECORD" not in os.environ, reason="stores histories anew")
async def test_record(hosted: Modules) -> None:
    """Store the histories of workflows whose modules were parked."""
    onboarding, loop = (modules.Onboarding.run, [hosted.user()]), (modules.Loop.run, [hosted.case, 2])
    cases: dict[str, tuple[tuple[Any, list[Any]], str, dict[str, Any]]] = {
        "replayed": (onboarding, "replay", {}),
        "edited": (onboarding, "replay", {"input_patch": {"age": 7}, "policy": {"max_attempts": 2}}),
        "resolved": (onboarding, "resolve", {"output": {"name": "by hand"}}),
        "discarded": (onboarding, "discard", {}),
        "fast": (loop, "replay", {}),
        "canceled": (onboarding, "cancel", {}),
    }
    for name, ((run, arguments), verb, fields) in cases.items():
        hosted.world.broken = {"fetch-profile", *(["count"] if name == "fast" else [])}
        handle = await hosted.start(run, *arguments)
        [letter] = await hosted.parked(handle)
        hosted.world.broken = set()
        if verb == "cancel":
            await handle.cancel()
        else:
            assert (await hosted.command(letter, verb, **fields)).accepted
        await asyncio.gather(handle.result(), return_exceptions=True)
        (STORED / f"module_{name}.json").write_text(scrubbed((await handle.fetch_history()).to_json()))


async def _called(hosted: Modules, name: str, times: int) -> bool:
    return len(hosted.world.keys(name)) >= times
