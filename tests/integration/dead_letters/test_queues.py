"""Dead letter queues: they write what arrives together, and never wait for what cannot be written."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from redrive import RunStatus
from redrive.contracts import Activity, Workflow
from redrive.dead_letters import Exhausted, LetterStatus, Verb
from redrive.starter.stack.state import StackInfo
from redrive.store.dead_letters import records
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case
from tests.integration.dead_letters.processes import stopped

MANY = 40


async def park_many(case: Case) -> list[str]:
    """Start runs that park, all at once, and return their ids."""
    case.service.broken.add("second")
    payload = {"case": case.name, "n": 1}
    starts = (case.redrive.start("three", payload, tenant=case.tenant) for _ in range(MANY))
    return [started.run_id for started in await asyncio.gather(*starts)]


async def recorded(case: Case, count: int) -> None:
    """Wait until so many dead letters wait for commands."""

    async def are_there() -> bool:
        sql = "SELECT count(*) AS n FROM redrive.dead_letters WHERE tenant = $1 AND status = 'pending'"
        (row,) = await case.rows(sql, case.tenant)
        return bool(row["n"] == count)

    await eventually(are_there)


async def queue_events(case: Case) -> list[Any]:
    """Return the events of all queues of the case's tenant."""
    query = f"WorkflowType = '{Workflow.DEAD_LETTER_QUEUE}' AND RedriveTenant = '{case.tenant}'"
    found = [each async for each in case.temporal.list_workflows(query)]
    handles = [case.temporal.get_workflow_handle(each.id, run_id=each.run_id) for each in found]
    return [event for handle in handles for event in (await handle.fetch_history()).events]


async def test_reports_that_arrive_together_are_written_together(case: Case) -> None:
    """Fewer local activities than reports; each report is written once, and no queue needs an ordinary activity."""
    run_ids = await park_many(case)
    await recorded(case, MANY)
    events = await queue_events(case)
    assert sum(event.HasField("workflow_execution_signaled_event_attributes") for event in events) == MANY
    assert sum(event.HasField("marker_recorded_event_attributes") for event in events) < MANY
    assert not any(event.HasField("activity_task_scheduled_event_attributes") for event in events)
    lines = [row["run_id"] for row in await case.audit() if row["action"] == "dead_lettered"]
    assert sorted(lines) == sorted(run_ids)


async def test_one_process_reports_to_one_queue_whose_tasks_come_first(case: Case) -> None:
    """Reports are gathered there, in few workflow tasks, which do not wait behind those of the runs that fail."""
    await park_many(case)
    await recorded(case, MANY)
    found = [
        each
        async for each in case.temporal.list_workflows(
            f"WorkflowType = '{Workflow.DEAD_LETTER_QUEUE}' AND RedriveTenant = '{case.tenant}'"
        )
    ]
    assert [each.id for each in found] == [case.queue.id]
    described = (await case.queue.describe()).raw_description.workflow_execution_info
    assert described.priority.priority_key == 1
    tasks = [event for event in await queue_events(case) if event.HasField("workflow_task_completed_event_attributes")]
    assert len(tasks) <= MANY // 2


async def test_without_a_database_each_report_waits_in_a_workflow_of_its_own(case: Case, stack: StackInfo) -> None:
    """The queue hands them over, and is free; they are written when the database is back, and the workflows end."""
    case.service.broken.add("second")
    with stopped(stack.children["postgres"]):
        await case.start()
        await case.until(RunStatus.DLQ_PENDING)
        letter = case.temporal.get_workflow_handle(case.letter("second").workflow_id)

        async def is_handed_over() -> bool:
            handed = [event.activity_task_scheduled_event_attributes for event in await queue_events(case)]
            return Activity.HAND_OVER_REPORTS in {each.activity_type.name for each in handed}

        await eventually(is_handed_over)

        async def queue_is_free() -> bool:
            return not (await case.queue.describe()).raw_description.pending_activities

        await eventually(queue_is_free)
        assert (await letter.describe()).status is WorkflowExecutionStatus.RUNNING
    await case.until_letter("second", LetterStatus.PENDING)
    await letter.result()
    await case.works_still()


async def test_a_report_that_cannot_be_written_stops_no_other(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own workflow tries again, until it is written."""
    put, is_bad = records.record_exhausted, True

    async def put_unless_bad(pool: Any, message: Exhausted, *others: Any) -> records.Recorded:
        if is_bad and message.letter.run_id == case.run_id:
            raise ValueError("a report that nobody foresaw")
        return await put(pool, message, *others)

    monkeypatch.setattr(records, "record_exhausted", put_unless_bad)
    case.service.broken.add("second")
    await case.start()
    await case.until(RunStatus.DLQ_PENDING)
    await park_many(case)
    await recorded(case, MANY)
    is_bad = False
    await recorded(case, MANY + 1)
    await case.works_still()


@pytest.mark.parametrize("verb", [Verb.DISCARD, Verb.REPLAY])
async def test_command_to_a_run_that_is_gone_is_answered_through_the_queue(case: Case, verb: Verb) -> None:
    """By whoever still can: a discard needs no run, a replay does."""
    await case.park("second")
    await case.run.terminate(reason="a test")
    answer = await case.queue.execute_update(verb, case.addressed(request_id="late"))
    assert answer["accepted"] is (verb is Verb.DISCARD)
    action = "discarded" if verb is Verb.DISCARD else "refused"
    assert (await case.audited("late", action=action))["actor"] == "ada"
