"""Runs that were reset (`temporal workflow reset`) and records that were restored: the run's word counts."""

import uuid
from collections.abc import Awaitable, Callable
from functools import partial

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus

from redrive import RunStatus
from redrive.dead_letters import LetterStatus, Verb
from redrive.missed_ends import MissedEnds
from redrive.postgres.database import open_pool
from redrive.reconcile import Kind, Problem, Reconciliation
from redrive.redaction.redactor import Redactor
from redrive.visibility import runs_query
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case


async def reset_to_the_first_park(case: Case, *, repeats_signals: bool = True) -> None:
    """Take the run back to where it was first parked, before any command: it parks, and reports, again."""
    events = case.run.fetch_history_events()
    parked = await anext(
        e async for e in events if e.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES
    )
    attributes = parked.upsert_workflow_search_attributes_event_attributes
    await _reset(case, attributes.workflow_task_completed_event_id, repeats_signals=repeats_signals)


async def reset_before(case: Case, signal: str) -> None:
    """Take the run back to the workflow task before its first signal of a name."""
    events = [event async for event in case.run.fetch_history_events()]
    first_signal = next(
        event.event_id
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
        and event.workflow_execution_signaled_event_attributes.signal_name == signal
    )
    tasks = [e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    await _reset(case, max(task for task in tasks if task < first_signal))


async def _reset(case: Case, task: int, *, repeats_signals: bool = True) -> None:
    """Let the run begin again with a workflow task; by default, as by `temporal workflow reset`, with later signals."""
    left_out = [] if repeats_signals else [ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL]
    description = await case.run.describe()
    await case.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=case.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=case.run_id, run_id=description.run_id),
            reason="a test",
            workflow_task_finish_event_id=task,
            request_id=uuid.uuid4().hex,
            reset_reapply_exclude_types=left_out,
        )
    )

    async def is_another() -> bool:
        now = await case.run.describe()
        return now.run_id != description.run_id and now.status is WorkflowExecutionStatus.RUNNING

    await eventually(is_another)


async def test_command_to_a_run_that_was_reset_is_carried_out(case: Case) -> None:
    """The run is parked in cycle 1 again, the record tells of cycle 2: the run reports, then obeys."""
    await case.park("second")
    assert (await case.command(Verb.REPLAY, request_id="before")).accepted
    await case.until_letter("second", LetterStatus.PENDING, cycle=2)
    await reset_to_the_first_park(case)
    case.mend()
    answer = await case.command(Verb.REPLAY, request_id="after")
    assert answer.accepted, answer
    await case.until(RunStatus.SUCCESS)
    record = await case.until_letter("second", LetterStatus.REPLAYED)
    assert record["cycle"] == 1
    assert (await case.until_row(RunStatus.SUCCESS))["closed_at"] is not None


async def _ahead(case: Case, reset: Callable[[Case], Awaitable[None]]) -> None:
    """Reset a run whose replay ended well to where it was parked: its record says that the step is done."""
    await case.park("second")
    # A workflow task of its own, after the one that reported.
    await case.run.signal(Verb.DISCARD, {"nonsense": True})
    await case.refusals(1)
    case.mend("second")
    case.service.broken.add("third")
    assert (await case.command(Verb.REPLAY, request_id="before")).accepted
    await case.until_letter("second", LetterStatus.REPLAYED)
    await case.until_letter("third", LetterStatus.PENDING)
    await reset(case)


async def test_run_that_was_reset_to_its_report_reports_again(case: Case) -> None:
    """Its history is older, and its report newer: the record is pending again, without any repair."""
    await _ahead(case, reset_to_the_first_park)
    await case.until_letter("second", LetterStatus.PENDING)
    await case.works_still()


async def test_record_that_is_ahead_of_a_reset_run_is_repaired_by_its_word(case: Case) -> None:
    """The run was reset to after its report: asked once, it reports again, and that counts."""
    await _ahead(case, partial(reset_before, signal=Verb.REPLAY))
    pool = await open_pool(case.database_url)
    try:

        async def found() -> list[Problem]:
            # Temporal's list, which lags behind, may not have the run yet.
            ends = MissedEnds(case.temporal, pool, Redactor())
            report = await Reconciliation(case.temporal, pool, ends, repair=True).run(case.tenant)
            return [problem for problem in report.problems if problem.step == "second"]

        problems = await eventually(found)
    finally:
        await pool.close()
    assert [(problem.kind, problem.repaired) for problem in problems] == [(Kind.COMMAND_LOST, True)]
    await case.until_letter("second", LetterStatus.PENDING)
    await case.works_still()


async def test_command_to_a_run_whose_record_is_ahead_is_carried_out(case: Case) -> None:
    """Nobody has repaired anything: the run tells its record where it is, then has the command recorded."""
    await _ahead(case, partial(reset_before, signal=Verb.REPLAY))
    await case.works_still()
    await case.until_letter("second", LetterStatus.REPLAYED)


async def _is_not_listed_as_parked(case: Case) -> bool:
    """Tell whether Temporal's list, which lags behind, has the run's end: a run that is parked is left alone."""
    query = runs_query(tenant=case.tenant, status=RunStatus.DLQ_PENDING, pipeline=None)
    return not [run async for run in case.temporal.list_workflows(query)]


async def test_record_restored_from_before_a_discard_is_discarded_again(case: Case) -> None:
    """The run's own failure says who discarded it and why; nobody has to do it twice, nothing is offered for replay."""
    await case.park("second")
    assert (await case.command(Verb.DISCARD, request_id="once", reason="too old")).accepted
    await case.until(RunStatus.FAILED)
    await case.until_letter("second", LetterStatus.DISCARDED)
    await case.until_row(RunStatus.FAILED)
    await eventually(lambda: _is_not_listed_as_parked(case))
    await case.rows(
        "UPDATE dead_letters SET status = 'pending', resolution = NULL, resolution_reason = NULL WHERE id = $1",
        case.letter("second").workflow_id,
    )
    pool = await open_pool(case.database_url)
    try:
        ends = MissedEnds(case.temporal, pool, Redactor())
        report = await Reconciliation(case.temporal, pool, ends, repair=True).run(case.tenant)
    finally:
        await pool.close()
    assert [(problem.kind, problem.repaired) for problem in report.problems] == [(Kind.OUTCOME_LOST, True)]
    record = await case.record("second") or {}
    assert (record["status"], record["orphaned"]) == (LetterStatus.DISCARDED, False)
    assert "too old" in record["resolution_reason"]
