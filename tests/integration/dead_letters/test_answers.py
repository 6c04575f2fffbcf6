"""How a client gets the answer to its command: by an update that waits inside the run."""

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowUpdateInput, WorkflowUpdateStage
from temporalio.service import RPCError, RPCStatusCode

from redrive import Redrive, RunStatus
from redrive.contracts import Update, Workflow
from redrive.dead_letters import Reply, Verb
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case

# More than the updates that Temporal lets wait in one run.
OPERATORS = 25


async def test_more_operators_than_may_wait_are_all_answered(case: Case) -> None:
    """Of many replays at once one is accepted; the others are told why not, however many ask the run."""
    await case.park("second")
    case.mend()
    case.service.is_open.clear()
    answers = await asyncio.gather(*(case.command(Verb.REPLAY, request_id=f"r-{n}") for n in range(OPERATORS)))
    case.service.is_open.set()
    assert Counter(answer.accepted for answer in answers) == {True: 1, False: OPERATORS - 1}
    assert all(answer.message for answer in answers if not answer.accepted)
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS


class Unlucky(Interceptor):
    """Answers the first question as Temporal does when a workflow task fails while an update is on its way."""

    asked = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's name
        unlucky = self

        class Calls(OutboundInterceptor):
            async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:  # noqa: A002 - Temporal's name
                unlucky.asked += 1
                if unlucky.asked == 1:
                    raise RPCError("unexpected workflow task failure", RPCStatusCode.FAILED_PRECONDITION, b"")
                return await super().start_workflow_update(input)

        return Calls(next)


async def test_question_that_meets_a_failed_workflow_task_is_asked_again(case: Case) -> None:
    """The command is in the run already: its sender gets the answer, not an error."""
    await case.park("second")
    case.mend()
    unlucky = Unlucky()
    config = case.temporal.config()
    config["interceptors"] = [unlucky]
    client = Client(**config)
    letters = Redrive(client, task_queue=case.task_queue).dead_letters
    answer = await letters.replay(case.letter("second"), requested_by="ada", reason="a test")
    assert answer.accepted, answer
    assert unlucky.asked == 2
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS


async def test_question_without_a_command_ends_with_the_run(case: Case) -> None:
    """Who asks for an answer and dies before sending the command holds nothing up."""
    await case.park("second")
    asked = await case.run.start_update(
        Update.ANSWER, "never sent", result_type=Reply, wait_for_stage=WorkflowUpdateStage.ACCEPTED
    )
    case.mend()
    assert (await case.command(Verb.REPLAY)).accepted
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    assert await asked.result() == Reply(answer=None, is_open=False)


async def test_caller_that_is_canceled_while_it_waits_is_canceled(case: Case) -> None:
    """No worker answers; the caller's own deadline counts, not an error of Temporal's client."""
    run = await case.temporal.start_workflow(
        Workflow.MODULE_RUN, id=f"run-{uuid.uuid4().hex}", task_queue=f"nobody-{uuid.uuid4().hex}"
    )
    waiting = asyncio.create_task(case.redrive.dead_letters.go_on(run.id, requested_by="ada", reason="a test"))

    async def is_sent() -> bool:
        history = await run.fetch_history()
        return any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED for event in history.events)

    await eventually(is_sent)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await run.terminate()
