"""Races of a parked run: Temporal, the record, the row and the key say the same, whatever comes first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from redrive import Redrive, RunStatus
from redrive.connection import database_url
from redrive.contracts import StartedRun, Workflow
from redrive.dead_letters import LetterInput, LetterStatus, Verb
from redrive.errors import InvalidInput, RunNotFound
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.settings import Settings
from redrive.visibility import execution_status, runs_query
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case, wording
from tests.integration.dead_letters.sweeps import sweep, sweep_until
from tests.integration.dead_letters.test_resets import reset_to_the_first_park

CANCELED = 24
# From before the step fails until after its replay has ended, on a busy machine.
LONGEST = 0.6


@pytest.fixture
async def keyed(case: Case, lab_settings: Settings) -> AsyncIterator[Case]:
    """A case whose keys are kept in the database."""
    claims = PostgresClaims(database_url(lab_settings), max_size=4)
    registry = case.redrive._registry  # the lab's, which knows the pipelines
    async with Redrive(case.temporal, task_queue=case.task_queue, registry=registry, claims=claims) as redrive:
        case.redrive = redrive
        yield case


async def _answer(case: Case, key: str) -> StartedRun:
    return await case.redrive.start("three", {"case": case.name, "n": 1}, tenant=case.tenant, key=key)


async def _told(case: Case, run_id: str, key: str) -> dict[str, Any]:
    """Return what each source says about a run's end."""
    (row,) = await case.rows("SELECT status FROM redrive.runs WHERE run_id = $1", run_id) or [{"status": None}]
    letters = await case.rows("SELECT status FROM redrive.dead_letters WHERE run_id = $1", run_id)
    return {
        "temporal": execution_status(await case.temporal.get_workflow_handle(run_id).describe()),
        "row": row["status"],
        "key": (await _answer(case, key)).status,
        "open records": [each["status"] for each in letters if not LetterStatus(each["status"]).closed],
    }


async def test_a_cancellation_at_any_point_of_a_replay_leaves_one_truth(keyed: Case) -> None:
    """Before the failure, when parked, while the command is recorded, in the replay, at the end and after it."""
    keyed.service.broken.add("second")

    async def cancel(number: int) -> str:
        run_id = (await _answer(keyed, f"k{number}")).run_id
        replaying = asyncio.create_task(_replay_when_parked(keyed, run_id))
        await asyncio.sleep(number * LONGEST / CANCELED)
        with suppress(InvalidInput):  # it has ended already
            await keyed.redrive.cancel(run_id, reason="a test")
        await replaying
        return run_id

    started = asyncio.gather(*(cancel(number) for number in range(CANCELED)))
    await asyncio.sleep(LONGEST / 3)
    keyed.mend()
    for number, run_id in enumerate(await started):

        async def agree(run_id: str = run_id, key: str = f"k{number}") -> bool:
            told = await _told(keyed, run_id, key)
            end = told["temporal"]
            # A run that was canceled before it had a row has none.
            rows = {end, None} if end is RunStatus.CANCELED else {end}
            return end.closed and told["row"] in rows and told["key"] is end and not told["open records"]

        await eventually(agree)


async def _replay_when_parked(case: Case, run_id: str) -> None:
    letter = case.letter("second").model_copy(update={"run_id": run_id})
    for _ in range(100):
        answer = await case.redrive.dead_letters.replay(letter, requested_by="ada", reason="a test")
        status = execution_status(await case.temporal.get_workflow_handle(run_id).describe())
        if answer.accepted or status.closed:
            return
        await asyncio.sleep(0.02)


async def _has_ended(client: Client, workflow_id: str) -> bool:
    return (await client.get_workflow_handle(workflow_id).describe()).status is not WorkflowExecutionStatus.RUNNING


@pytest.mark.parametrize("verb", [Verb.DISCARD, Verb.REPLAY, Verb.RESTART])
async def test_canceled_run_never_answers_failed(keyed: Case, verb: Verb) -> None:
    """A command meets the ended run before its report has arrived: the record, row and key say CANCELED."""
    await keyed.park("second", key="k")
    await keyed.redrive.cancel(keyed.run_id, reason="a test")
    await keyed.until_letter("second", LetterStatus.DISCARDED)
    await keyed.until_row(RunStatus.CANCELED)
    letter = keyed.letter("second").workflow_id
    # As before the report.
    for statement, name in (
        ("UPDATE redrive.dead_letters SET status = 'pending', resolution = NULL WHERE id = $1", letter),
        ("UPDATE redrive.runs SET status = 'DLQ_PENDING', closed_at = NULL WHERE run_id = $1", keyed.run_id),
    ):
        await keyed.rows(statement, name)
    answer = await keyed.command(verb)
    assert not answer.accepted, answer
    assert (await keyed.record("second") or {})["resolution"] == "run canceled"
    assert (await keyed.until_row(RunStatus.CANCELED))["closed_at"] is not None
    assert (await _answer(keyed, "k")).status is RunStatus.CANCELED


async def test_key_of_a_run_that_was_reset_after_its_success_follows_the_run(keyed: Case) -> None:
    """The key answers what the run is: parked again after the reset, and its new end after that."""
    await keyed.park("second", key="k")
    keyed.mend()
    assert (await keyed.command(Verb.REPLAY, request_id="before")).accepted
    await keyed.until_row(RunStatus.SUCCESS)
    await reset_to_the_first_park(keyed)
    answer = await keyed.command(Verb.DISCARD, request_id="after")
    assert answer.accepted, answer
    await keyed.until(RunStatus.FAILED)
    await keyed.until_row(RunStatus.FAILED)
    assert (await _answer(keyed, "k")).status is RunStatus.FAILED


async def test_command_to_a_closed_dead_letter_leaves_no_open_workflow(case: Case) -> None:
    """Its workflow is started by the command alone, and ends when that is answered."""
    await case.park("second")
    assert (await case.command(Verb.DISCARD)).accepted
    await case.until(RunStatus.FAILED)
    letter = case.letter("second")
    await case.temporal.start_workflow(
        Workflow.DEAD_LETTER,
        LetterInput(letter=letter),
        id=letter.workflow_id,
        task_queue=case.task_queue,
        start_signal=Verb.REPLAY,
        start_signal_args=[wording(request_id="late")],
    )
    await case.audited("late", action="refused")
    await eventually(lambda: _has_ended(case.temporal, letter.workflow_id))


async def test_a_record_that_has_just_changed_is_left_to_the_next_sweep(case: Case, lab_settings: Settings) -> None:
    """A command may be on its way: to look at each such run, or to ask it to report again, adds to a load."""
    await case.park("second")
    taken = "UPDATE redrive.dead_letters SET status = 'replaying', updated_at = now() WHERE id = $1"
    await case.rows(taken, case.letter("second").workflow_id)
    listed = runs_query(tenant=case.tenant, status=RunStatus.DLQ_PENDING, pipeline=None)
    await eventually(lambda: _has_one(case.temporal, listed))

    async def is_open_again() -> bool:
        return bool((await case.record() or {})["status"] == LetterStatus.PENDING)

    await sweep(case, lab_settings, quiet=timedelta(hours=1))
    assert not await is_open_again()
    await sweep_until(is_open_again, case, lab_settings)
    await case.works_still()


async def _has_one(client: Client, query: str) -> bool:
    return (await client.count_workflows(query)).count == 1


async def test_row_that_missed_the_end_is_settled_by_the_next_sweep(keyed: Case, lab_settings: Settings) -> None:
    """However long the run took, and whatever the row says: RUNNING, or parked without an open dead letter."""
    keyed.service.broken.add("second")
    for wrong in ("RUNNING", "DLQ_PENDING"):
        await keyed.start(key=wrong)
        await keyed.until_letter("second", LetterStatus.PENDING)
        assert (await keyed.command(Verb.RESOLVE, output={"step": "second", "n": 1})).accepted
        await keyed.until_row(RunStatus.SUCCESS)
        await keyed.rows(
            """
            UPDATE redrive.runs SET status = $2, closed_at = NULL, started_at = now() - interval '1 day',
                updated_at = now() - interval '1 second'
            WHERE run_id = $1
            """,
            keyed.run_id,
            wrong,
        )

        async def is_settled() -> bool:
            (row,) = await keyed.rows("SELECT status FROM redrive.runs WHERE run_id = $1", keyed.run_id)
            return bool(row["status"] == RunStatus.SUCCESS)

        await sweep_until(is_settled, keyed, lab_settings)
        assert await is_settled()
        assert (await _answer(keyed, wrong)).status is RunStatus.SUCCESS


async def test_row_of_a_run_that_temporal_has_forgotten_goes(case: Case, lab_settings: Settings) -> None:
    """Nobody knows how the run ended: no row says that it is under way for ever."""
    await case.start()
    await case.until_row(RunStatus.SUCCESS)
    await case.rows(
        """
        INSERT INTO redrive.runs (run_id, tenant, pipeline, status, started_at, updated_at)
        VALUES ($1, $2, 'three', 'RUNNING', now() - interval '1 day', now() - interval '1 minute')
        """,
        f"forgotten-{case.name}",
        case.tenant,
    )
    await sweep(case, lab_settings)
    rows = await case.rows("SELECT run_id FROM redrive.runs WHERE tenant = $1", case.tenant)
    assert [row["run_id"] for row in rows] == [case.run_id]
    with pytest.raises(RunNotFound):
        await case.redrive.status(f"forgotten-{case.name}")
