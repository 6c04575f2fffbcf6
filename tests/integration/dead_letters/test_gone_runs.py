"""Dead letters whose run was terminated or has vanished."""

import asyncio
from functools import partial
from typing import Any

import asyncpg
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from redrive import RunStatus
from redrive.dead_letters import LetterStatus, Verb
from redrive.keys import run_id_for_key
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case


async def vanish(case: Case) -> None:
    """Remove the run from Temporal, as retention does."""
    request = DeleteWorkflowExecutionRequest(
        namespace=case.temporal.namespace, workflow_execution=WorkflowExecution(workflow_id=case.run_id)
    )
    await case.temporal.workflow_service.delete_workflow_execution(request)

    async def gone() -> bool:
        try:
            await case.run.describe()
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return False

    await eventually(gone)


async def test_replay_of_a_terminated_run_says_so(case: Case) -> None:
    """The record stays pending, marked as orphaned."""
    await case.park("second")
    await case.run.terminate()
    commands: list[tuple[Verb, dict[str, Any]]] = [(Verb.REPLAY, {}), (Verb.RESOLVE, {"output": {"step": "x", "n": 1}})]
    for verb, fields in commands:
        answer = await case.command(verb, **fields)
        assert not answer.accepted
        assert answer.orphaned
        assert "restart" in answer.message
        assert await case.audited(answer.request_id, action="refused")
    record = await case.record()
    assert record
    assert (record["status"], record["orphaned"]) == ("pending", True)


async def test_restart_takes_the_place_of_a_terminated_run(case: Case) -> None:
    """The next generation of the key goes on from the dead step; what earlier steps returned is reused."""
    await case.park("second", key="invoice:1")
    await case.run.terminate()
    case.mend()
    answer = await case.command(Verb.RESTART)
    assert answer.accepted, answer
    assert answer.status is LetterStatus.RESOLVED
    anew = run_id_for_key(case.tenant, "invoice:1", 1)
    assert anew in answer.message
    result = await case.redrive.result(anew)
    assert result.status is RunStatus.SUCCESS
    assert case.service.called == ["first", "second", "second", "third"]
    record = await case.until_letter("second", LetterStatus.RESOLVED)
    assert (record["resolution"], record["resolved_by"]) == ("restart", "ada")


async def test_restarts_at_once_start_one_run(case: Case) -> None:
    """One is accepted, the others are told that nothing is left; a run without a key can be restarted, too."""
    await case.park("second")
    await case.run.terminate()
    case.mend()
    answers = await asyncio.gather(*(case.command(Verb.RESTART) for _ in range(5)))
    assert [answer.accepted for answer in answers].count(True) == 1
    await case.redrive.result(run_id_for_key(case.tenant, case.run_id, 1))
    assert case.service.called == ["first", "second", "second", "third"]


async def test_restarted_run_that_fails_again_has_a_letter_of_its_own(case: Case) -> None:
    """It is another run: its letter is another one, too."""
    await case.park("second", key="invoice:2")
    await case.run.terminate()
    await case.command(Verb.RESTART)
    gone, case.run_id = case.run_id, run_id_for_key(case.tenant, "invoice:2", 1)
    record = await case.until_letter("second", LetterStatus.PENDING)
    assert record["run_id"] != gone
    await case.works_still()


async def test_restart_of_an_open_run_is_refused(case: Case) -> None:
    """It can be replayed."""
    await case.park("second")
    answer = await case.command(Verb.RESTART)
    assert not answer.accepted
    assert "replay" in answer.message
    await case.works_still()


async def test_vanished_run_cannot_be_restarted_but_its_letter_closed(case: Case) -> None:
    """Nothing can be read of it any more; the answers say so, and a discard ends the matter."""
    await case.park("second")
    await vanish(case)
    for verb in (Verb.REPLAY, Verb.RESTART):
        answer = await case.command(verb)
        assert not answer.accepted
        assert answer.orphaned
        assert "history" in answer.message
    record = await case.record()
    assert record
    assert (record["status"], record["orphaned"]) == ("pending", True)
    assert (await case.command(Verb.DISCARD)).accepted
    await case.until_letter("second", LetterStatus.DISCARDED)


async def test_blocked_letter_of_a_terminated_run_can_be_closed(case: Case) -> None:
    """It does not wait for ever for a letter that nobody can replay."""
    await case.park("third")
    case.mend()
    case.service.broken.add("first")
    await case.command(Verb.REPLAY, "third", from_step="first")
    await case.until_letter("first", LetterStatus.PENDING, cycle=2)
    await case.until_letter("third", LetterStatus.PENDING)
    await case.run.terminate()
    case.mend()
    assert (await case.command(Verb.RESTART, "first")).accepted
    answer = await case.command(Verb.DISCARD, "third")
    assert answer.accepted, answer
    await case.until_letter("third", LetterStatus.DISCARDED)


async def test_command_to_a_run_that_was_canceled_says_so(case: Case) -> None:
    """Its report may not have arrived yet: the record and the key say that it was canceled, not that it failed."""
    await case.park("second", key="invoice:3")
    await case.run.cancel()
    await eventually(partial(_is_closed, case))
    await _forget_the_outcome(case)
    answer = await case.command(Verb.REPLAY)
    assert not answer.accepted
    assert "discarded" in answer.message
    record = await case.record()
    assert record
    assert (record["status"], record["resolution"], record["orphaned"]) == ("discarded", "run canceled", False)
    assert (await case.until_row(RunStatus.CANCELED))["closed_at"] is not None


async def _is_closed(case: Case) -> bool:
    return (await case.view()).status is RunStatus.CANCELED


async def _forget_the_outcome(case: Case) -> None:
    """Make the record say what it said before the run's report."""
    await case.until_letter("second", LetterStatus.DISCARDED)
    connection = await asyncpg.connect(case.database_url)
    await connection.execute(
        "UPDATE redrive.dead_letters SET status = 'pending', resolution = NULL WHERE run_id = $1", case.run_id
    )
    await connection.execute(
        "UPDATE redrive.runs SET status = 'DLQ_PENDING', closed_at = NULL WHERE run_id = $1", case.run_id
    )
    await connection.close()


async def test_discard_of_a_run_that_was_terminated_in_a_replay(case: Case) -> None:
    """Nobody will report the outcome of that replay: the dead letter can be closed all the same."""
    await case.park("second")
    case.mend()
    case.service.flaky.add("second")
    assert (await case.command(Verb.REPLAY, policy={"base": "PT1M", "cap": "PT1M", "max_attempts": 5})).accepted
    await case.until_letter("second", LetterStatus.REPLAYING)
    await case.run.terminate()
    answer = await case.command(Verb.DISCARD)
    assert answer.accepted, answer
    await case.until_letter("second", LetterStatus.DISCARDED)
