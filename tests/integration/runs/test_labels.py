"""Labels of a run: on its log lines and dead letters, in its lists, and refused if they cannot be."""

import uuid
from contextlib import suppress
from typing import Any

import pytest
import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client

from redrive import (
    InvalidInput,
    ModuleContext,
    Pipeline,
    Redrive,
    Registry,
    RunStatus,
    StartedRun,
    Terminal,
    Unavailable,
)
from redrive.contracts import SearchAttribute, Workflow
from redrive.dead_letters import LetterFilter, LetterId
from redrive.postgres.database import connect, open_pool
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.dead_letters.lists import get_letter, list_letters, total
from redrive.store.dead_letters.models import LetterRecord
from tests.conftest import Running, WorkerFactory, eventually, owner_url
from tests.integration.runs.samples import Number, add_good_pipeline, quick, settled
from tests.integration.store.test_home import other

__all__ = ["other"]

# The fields that the first specification names.
LABELS = {
    "actor_type": "user-actor",
    "actor_key": "user_123",
    "mission_id": "interview",
    "mission_instance_id": "instance_456",
    "stage_id": "stage-2",
}


@pytest.fixture
def fails(registry: Registry) -> None:
    """A pipeline `fails` whose step logs a line and fails for good."""

    @registry.module("only", policy=quick(max_attempts=1))
    async def only(ctx: ModuleContext, given: Number) -> Number:
        ctx.log.info("only.seen", told=dict(ctx.labels))
        raise Terminal("no")

    Pipeline("fails", only, registry=registry)


async def letter_of(running: Running, tenant: str, run_id: str) -> LetterRecord:
    """Wait for the dead letter of a run."""
    letter = LetterId(tenant=tenant, run_id=run_id, step="only").workflow_id
    async with await open_pool(database(running.settings)) as pool:
        return await eventually(lambda: get_letter(pool, tenant, letter))


def database(settings: Settings) -> str:
    """Where the records are."""
    assert settings.database_url is not None
    return settings.database_url.get_secret_value()


@pytest.mark.usefixtures("fails")
async def test_labels_are_on_log_lines_and_dead_letters_and_in_lists(worker: WorkerFactory) -> None:
    """Every line of the run has them, the record has them, and each list finds the run by them, and not by others."""
    tenant = f"tenant-{uuid.uuid4().hex[:12]}"
    stage = {"mission_id": "interview", "stage_id": "stage-3"}
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        async with worker() as running:
            run_id = (await running.redrive.start("fails", {}, tenant=tenant, labels=LABELS)).run_id
            other = (await running.redrive.start("fails", {}, tenant=tenant, labels=stage)).run_id
            view = await settled(running.redrive, run_id)
            record = await letter_of(running, tenant, run_id)
            await letter_of(running, tenant, other)
            async with await open_pool(database(running.settings)) as pool:
                found = {
                    label: {
                        row.run_id for row in (await list_letters(pool, LetterFilter(tenant=tenant, label=label))).rows
                    }
                    for label in ("mission_id=interview", "mission_id=interview,stage_id=stage-2", "stage_id=stage")
                }
                count = await total(pool, LetterFilter(tenant=tenant, label="stage_id=stage-2"))
                elsewhere = await list_letters(pool, LetterFilter(tenant="another", label="mission_id=interview"))
            listed = await eventually(lambda: runs(running, tenant, "stage_id=stage-2,mission_id=interview"))
    assert view.labels == record.labels == LABELS
    assert found == {
        "mission_id=interview": {run_id, other},
        "mission_id=interview,stage_id=stage-2": {run_id},
        "stage_id=stage": set(),
    }
    assert count is not None
    assert (count.count, elsewhere.rows) == (1, [])
    assert listed == [run_id]
    own = [line for line in lines if line.get("run_id") == run_id]
    assert [line["told"] for line in own if line["event"] == "only.seen"] == [LABELS]
    assert {line["event"] for line in own} >= {"only.seen", "step.exhausted", "run.dead_lettered"}
    assert [line for line in own if {name: line.get(name) for name in LABELS} != LABELS] == []


async def runs(running: Running, tenant: str, label: str) -> list[str]:
    """Return the tenant's runs with a label."""
    return [row.run_id async for row in running.redrive.list_runs(tenant=tenant, label=label)]


async def test_a_run_that_succeeds_keeps_its_labels(
    worker: WorkerFactory, registry: Registry, stack: StackInfo
) -> None:
    """They are stored with the run's row, and gone with it."""
    add_good_pipeline(registry)
    async with worker() as running:
        run_id = (await running.redrive.start("good", {}, labels={"mission_id": "42"})).run_id
        await running.redrive.result(run_id)
        owner = await connect(owner_url(stack))

        async def stored() -> list[Any]:
            rows = await owner.fetch("SELECT name, value FROM redrive.run_labels WHERE run_id = $1", run_id)
            return [tuple(row) for row in rows]

        assert await eventually(stored) == [("mission_id", "42")]
        await owner.execute("DELETE FROM redrive.runs WHERE run_id = $1", run_id)
        assert await stored() == []
        await owner.close()


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"Mission": "1"}, "Mission"),
        ({"": "1"}, "labels"),
        ({"mission_id": ""}, "mission_id"),
        ({"mission_id": "two words"}, "mission_id"),
        ({"mission_id": "a,b"}, "mission_id"),
        ({"mission_id": "x" * 129}, "mission_id"),
        ({"mission_id": "\ud800"}, "mission_id"),
        ({"mission_id": 5}, "mission_id"),
        ({f"n{number}": "x" for number in range(11)}, "at most 10"),
        ({"run_id": "x"}, "every log line has a field of this name"),
        ({"mission_id": "sk_live_51HqFakeFakeFakeFake"}, "looks like a credential"),
    ],
)
async def test_labels_that_cannot_be_are_refused(
    worker: WorkerFactory, registry: Registry, labels: dict[str, Any], told: str
) -> None:
    """A wrong name or value, too many of them, a field of ours and a secret are named; nothing is started."""
    add_good_pipeline(registry)
    async with worker() as running:
        with pytest.raises(InvalidInput, match=told) as caught:
            await running.redrive.start("good", {}, labels=labels)
    assert "sk_live" not in str(caught.value)


async def test_a_filter_that_is_none_is_refused(worker: WorkerFactory) -> None:
    """A list is not silently empty because a label was written wrongly."""
    async with worker() as running:
        with pytest.raises(InvalidInput, match="mission_id=42,stage_id=2"):
            await runs(running, "default", "mission_id")


@pytest.mark.usefixtures("fails")
async def test_labels_past_our_client_do_no_harm(worker: WorkerFactory) -> None:
    """A run that Temporal's own client started may have names of ours and secrets: neither is recorded wrongly."""
    secret = "sk_live_51HqFakeFakeFakeFake"
    run_id = f"run-{uuid.uuid4().hex}"
    given = {"pipeline": "fails", "labels": {"run_id": "false", "self": "x", "event": "y", "code": secret}}
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        async with worker() as running:
            queue = running.settings.task_queue
            await running.temporal.start_workflow(Workflow.MODULE_RUN, given, id=run_id, task_queue=queue)
            view = await settled(running.redrive, run_id)
            record = await letter_of(running, "default", run_id)
    assert view.status is RunStatus.DLQ_PENDING
    assert record.labels == {"run_id": "false", "self": "x", "event": "y", "code": "[redacted]"}
    assert [line for line in lines if line.get("run_id") == "false"] == []
    assert "run.dead_lettered" in {line["event"] for line in lines if line.get("run_id") == run_id}


async def test_a_namespace_without_the_search_attribute_is_told(other: Client, registry: Registry) -> None:
    """A start with labels says which attribute to create there; one without labels needs none of it."""
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    known = {name.value: keyword for name in SearchAttribute}
    await other.operator_service.add_search_attributes(
        AddSearchAttributesRequest(search_attributes=known, namespace=other.namespace)
    )
    add_good_pipeline(registry)
    redrive = Redrive(other, task_queue="nobody", registry=registry)

    async def plain() -> StartedRun | None:
        # The attributes are not known everywhere at once.
        with suppress(Unavailable):
            return await redrive.start("good", {})
        return None

    assert (await eventually(plain)).status is RunStatus.RUNNING
    with pytest.raises(InvalidInput, match="search-attribute create --name RedriveLabels --type KeywordList"):
        await redrive.start("good", {}, labels={"mission_id": "42"})
