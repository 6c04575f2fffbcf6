"""Workflows whose workflow tasks fail over and over, with or without the plugin, have dead letters."""

import uuid
from typing import Any

from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from redrive.activities.workflow_tasks import PROBLEMS
from redrive.contracts import SearchAttribute, Workflow
from redrive.dead_letters import LetterStatus
from redrive.plugin import DeadLetters
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from tests.conftest import WorkerFactory, eventually, owner_url
from tests.integration.plugin.lab import Project

FIXED: set[str] = set()


@workflow.defn
class Buggy:
    """Fail each workflow task until its bug is fixed, then wait."""

    def __init__(self) -> None:
        self._done = False

    @workflow.run
    async def run(self, case: str) -> str:
        if case not in FIXED:
            raise RuntimeError("a bug, password=hunter22")
        await workflow.wait_condition(lambda: self._done)
        return "healed"

    @workflow.signal
    def finish(self) -> None:
        """Let it end."""
        self._done = True


async def test_a_workflow_task_that_fails_is_a_dead_letter_until_it_heals(
    worker: WorkerFactory, stack: StackInfo, settings: Settings
) -> None:
    """The record tells what fails; no command is taken; it closes by itself when the workflow goes on.

    One whose workflow was terminated is discarded.
    """
    plain = await Client.connect(stack.temporal_address)
    tenant = SearchAttributePair(SearchAttributeKey.for_keyword(SearchAttribute.TENANT), "acme")
    async with worker() as own:
        users = Project(plain, own.redrive, owner_url(stack), DeadLetters([]))

        async def swept(
            status: LetterStatus, of: WorkflowHandle[Any, Any] | None = None
        ) -> list[dict[str, Any]] | None:
            name = f"sweep-{uuid.uuid4().hex}"
            await own.temporal.execute_workflow(Workflow.EXPIRE_KEYS, id=name, task_queue=settings.task_queue)
            rows = await users.letters(of or handle)
            return rows if [row["status"] for row in rows] == [status] else None

        async def marked(of: WorkflowHandle[Any, Any] | None = None) -> bool:
            return bool((await (of or handle).describe()).typed_search_attributes.get(PROBLEMS))

        async def healed() -> bool:
            return not await marked()

        async with Worker(
            plain,
            task_queue=users.queue,
            workflows=[Buggy],
            workflow_runner=UnsandboxedWorkflowRunner(),
            build_id="tests",
        ):
            handle = await users.start(
                Buggy.run, users.case, search_attributes=TypedSearchAttributes([tenant]), id=f"buggy-{users.case}"
            )
            given_up = await users.start(Buggy.run, users.case)
            await eventually(marked, within=60)
            [letter] = await eventually(lambda: swept(LetterStatus.PENDING))
            assert (letter["tenant"], letter["module"], letter["error_type"]) == ("acme", "Buggy", "RuntimeError")
            assert (letter["message"], letter["config"]["kind"]) == ("a bug, password=[redacted]", "workflow_task")
            assert "in run" in letter["stack"]
            answer = await users.command(letter, "replay")
            assert (answer.accepted, "deploy a fixed worker" in answer.message) == (False, True)
            [again] = await swept(LetterStatus.PENDING) or []
            assert len(again["failure_history"]) == 1

            await eventually(lambda: marked(given_up), within=60)
            [letter] = await eventually(lambda: swept(LetterStatus.PENDING, given_up))
            refused = await users.command(letter, "discard")
            assert (refused.accepted, "terminate it with Temporal's own tools" in refused.message) == (False, True)
            await given_up.terminate()
            assert (await users.command(letter, "discard")).accepted
            await users.closed(given_up, LetterStatus.DISCARDED)

            FIXED.add(users.case)
            await eventually(healed, within=90)
            await eventually(lambda: swept(LetterStatus.REPLAYED))
            await handle.signal(Buggy.finish)
            assert await handle.result() == "healed"
