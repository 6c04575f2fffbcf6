"""What is to happen is in a history before PostgreSQL is told of it: a crash in between repeats the telling."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from redrive import RunStatus
from redrive.activities import run_records
from redrive.dead_letters import CommandRequest, Exhausted, LetterStatus, Verb
from redrive.store.dead_letters import records
from redrive.store.runs import FinishedRun, put_finished
from tests.integration.dead_letters.lab import Case, wording

Write = Callable[..., Awaitable[Any]]


def has_command(events: Sequence[HistoryEvent], verb: Verb, request_id: str) -> bool:
    """Tell whether a history has a command, by whichever way it came."""
    for event in events:
        signal = event.workflow_execution_signaled_event_attributes
        update = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
        name, given = (signal.signal_name, signal.input) if signal.signal_name else (update.name, update.args)
        if name == verb and any(request_id.encode() in payload.data for payload in given.payloads):
            return True
    return False


async def by_client(case: Case, verb: Verb, request_id: str) -> None:
    """Give a command as operators do."""
    await case.command(verb, request_id=request_id)


async def by_signal(case: Case, verb: Verb, request_id: str) -> None:
    """Signal a command to the run, as the Web UI does."""
    await case.run.signal(verb, wording(request_id=request_id))


async def by_update(case: Case, verb: Verb, request_id: str) -> None:
    """Send a command to the run as an update."""
    await case.run.execute_update(verb, wording(request_id=request_id))


async def by_queue(case: Case, verb: Verb, request_id: str) -> None:
    """Send a command to the dead letter queue as an update."""
    await case.queue.execute_update(verb, case.addressed(request_id=request_id))


@pytest.mark.parametrize("give", [by_client, by_signal, by_update, by_queue])
@pytest.mark.parametrize("verb", [Verb.REPLAY, Verb.DISCARD])
async def test_a_command_is_in_the_history_of_its_run_before_it_is_recorded(
    case: Case, monkeypatch: pytest.MonkeyPatch, give: Callable[[Case, Verb, str], Awaitable[None]], verb: Verb
) -> None:
    """By whichever way it comes. Recorded first, a crash would leave a record of what nobody carries out."""
    await case.park("second")
    case.mend()
    take, found = records.take_command, []

    async def look_and_take(pool: Any, request: CommandRequest, *others: Any) -> records.Taken:
        events = (await case.run.fetch_history()).events
        found.append(has_command(events, verb, request.command.request_id))
        return await take(pool, request, *others)

    monkeypatch.setattr(records, "take_command", look_and_take)
    await give(case, verb, "once")
    await case.until(RunStatus.SUCCESS if verb is Verb.REPLAY else RunStatus.FAILED)
    assert found
    assert all(found)


@pytest.mark.parametrize(
    ("pipeline", "decided_by"),
    [
        ("three", EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED),
        # The history has the result of a fast step when the workflow task is over, which is the run's last one.
        ("brief", EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED),
    ],
)
async def test_a_success_is_in_the_history_before_the_row_says_so(
    case: Case, monkeypatch: pytest.MonkeyPatch, pipeline: str, decided_by: EventType.ValueType
) -> None:
    """All steps are done, for good: a cancellation, or a worker's death, changes the end no more."""
    found = []

    async def look_and_put(session: Any, run: FinishedRun) -> None:
        events = (await case.temporal.get_workflow_handle(run.run_id).fetch_history()).events
        found.append(sum(event.event_type == decided_by for event in events))
        await put_finished(session, run)

    monkeypatch.setattr(run_records, "put_finished", look_and_put)
    await case.start(pipeline=pipeline)
    await case.until_row(RunStatus.SUCCESS)
    assert set(found) == {3 if pipeline == "three" else 1}


async def test_a_cancellation_that_comes_while_the_row_is_written_is_too_late(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal refuses the run's end once, because of the request; the run then ends as its row says already."""

    async def cancel_and_put(session: Any, run: FinishedRun) -> None:
        await case.temporal.get_workflow_handle(run.run_id).cancel()
        await put_finished(session, run)

    monkeypatch.setattr(run_records, "put_finished", cancel_and_put)
    await case.start()
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
    events = (await case.run.fetch_history()).events
    assert EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED in {event.event_type for event in events}
    await case.until_row(RunStatus.SUCCESS)


async def test_a_failure_is_in_both_histories_before_its_record_is_written(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the run, which is parked for good, and that of the queue, which writes until it is written."""
    put, found = records.record_exhausted, []

    async def look_and_put(pool: Any, message: Exhausted, *others: Any) -> records.Recorded:
        run, queue = [(await each.fetch_history()).events for each in (case.run, case.queue)]
        failed = [event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED for event in run]
        told = [case.run_id.encode() in event.SerializeToString() for event in queue]
        found.append((any(failed), any(told)))
        return await put(pool, message, *others)

    monkeypatch.setattr(records, "record_exhausted", look_and_put)
    await case.park("second")
    await case.until_letter("second", LetterStatus.PENDING)
    assert set(found) == {(True, True)}
