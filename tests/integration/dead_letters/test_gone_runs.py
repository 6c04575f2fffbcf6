"""Dead letters whose run was terminated or has vanished."""

import asyncio
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from redrive import Registry, RunStatus
from redrive.activities.command_checks import CheckedCommand, CommandChecks
from redrive.activities.commands import CommandActivities
from redrive.dead_letters import COMMANDS, CommandRequest, LetterStatus, Verb
from redrive.keys import run_id_for_key
from redrive.metrics import Metrics
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case, wording


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


class _Late(CommandChecks):
    """The check of a command whose run ends right after it."""

    async def check(self, request: CommandRequest) -> CheckedCommand:
        return CheckedCommand(message="the run goes on")


@pytest.mark.parametrize("verb", [Verb.REPLAY, Verb.RESOLVE])
async def test_run_that_ends_between_check_and_command_leaves_the_letter_open(case: Case, verb: Verb) -> None:
    """Nobody carries it out: the record is pending and orphaned, after a resolve, too, and the audit log says why."""
    await case.park("second")
    await case.run.terminate()
    registry = Registry()
    async with Database(case.database_url) as database:
        checks = _Late(case.temporal, registry, Redactor(), task_queue=case.task_queue)
        activities = CommandActivities(case.temporal, database, checks, Redactor(), Metrics())
        fields = {"output": {"step": "x", "n": 1}} if verb is Verb.RESOLVE else {}
        command: Any = COMMANDS.validate_python(wording(verb=verb, **fields))
        request = CommandRequest(
            letter=case.letter("second"), command=command, refusal=None, status=LetterStatus.PENDING, cycle=1
        )
        recorded = await activities.record_command(request)
    assert (recorded.under_way, recorded.orphaned) == (False, True)
    record = await case.record() or {}
    assert (record["status"], record["orphaned"], record["resolution"]) == ("pending", True, None)
    assert [row["action"] for row in await case.audit()][-1] == "reopened"
    assert (await case.until_row(RunStatus.FAILED))["closed_at"] is not None
