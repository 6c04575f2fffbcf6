"""Only the run numbers its states: a row, a record and a key take what is newer, whoever writes, and nothing else."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.contracts import KeyClaim, KeyStatus, RunStatus
from redrive.dead_letters import Ending, LetterCommand, LetterId, LetterStatus
from redrive.idempotency.claims import Settlement
from redrive.idempotency.postgres_claims import run_claim
from redrive.keys import run_id_for_key
from redrive.postgres.tenancy import Pool
from redrive.store.dead_letters import records
from redrive.store.dead_letters.lists import get_letter
from redrive.store.keys import get_key
from redrive.store.runs import FinishedRun, correct_run, get_run, list_unheard_runs, put_finished
from tests.integration.store.letters import CYCLE, START, discard, exhausted, given, outcome, replay, yes

KEY = "order:ann:1:pay:v1"


@pytest.fixture
def letter(tenant: str) -> LetterId:
    """The dead letter of a run that has a key."""
    return LetterId(tenant=tenant, run_id=run_id_for_key(tenant, KEY, 0), step="charge")


async def _said(pool: Pool, letter: LetterId) -> tuple[RunStatus | None, LetterStatus | None, KeyStatus | None]:
    """Return what the row, the record and the key say."""
    run = await get_run(pool, letter.tenant, letter.run_id)
    record = await get_letter(pool, letter.tenant, letter.workflow_id)
    key = await get_key(pool, letter.tenant, KEY)
    return (run.status if run else None), (record.status if record else None), (key.status if key else None)


async def _park(pool: Pool, letter: LetterId, cycle: int) -> None:
    await records.record_exhausted(pool, exhausted(letter, cycle, key=KEY, claim=_claim()))


def _claim() -> KeyClaim:
    return KeyClaim(request_hash="hash", expires_at=datetime.now(UTC) + timedelta(days=1))


async def _succeed(pool: Pool, letter: LetterId, revision: int) -> None:
    run = FinishedRun(
        run_id=letter.run_id,
        tenant=letter.tenant,
        pipeline="orders",
        status=RunStatus.SUCCESS,
        correlation_id=None,
        idempotency_key=KEY,
        started_at=START - timedelta(minutes=1),
        revision=revision,
        claim=run_claim(
            tenant=letter.tenant,
            key=KEY,
            run_id=letter.run_id,
            pipeline="orders",
            claim=_claim(),
            end=Settlement(status=RunStatus.SUCCESS, output={}),
        ),
    )
    await put_finished(pool, run)


async def test_success_of_a_worker_that_was_frozen_does_not_end_a_run_that_was_reset(
    pool: Pool, letter: LetterId
) -> None:
    """It was decided in a history that counts no more: the run is parked again, and its key in process."""
    await _park(pool, letter, 1)
    await _park(pool, letter, 3)
    parked = (RunStatus.DLQ_PENDING, LetterStatus.PENDING, KeyStatus.PROCESSING)
    await _succeed(pool, letter, 2 * CYCLE)
    assert await _said(pool, letter) == parked
    await _succeed(pool, letter, 3 * CYCLE + 1)
    assert await _said(pool, letter) == (RunStatus.SUCCESS, LetterStatus.PENDING, KeyStatus.COMPLETED)


async def test_failure_that_is_reported_late_does_not_open_a_run_that_has_ended(pool: Pool, letter: LetterId) -> None:
    """A report that waited for the database arrives after all that followed it."""
    await _park(pool, letter, 2)
    last = outcome(Ending.SUCCEEDED, None, revision=2 * CYCLE + 2)
    await records.put_outcome(pool, letter, last)
    await _succeed(pool, letter, 2 * CYCLE + 3)
    ended = (RunStatus.SUCCESS, LetterStatus.REPLAYED, KeyStatus.COMPLETED)
    assert await _said(pool, letter) == ended
    await _park(pool, letter, 1)
    assert await _said(pool, letter) == ended


@pytest.mark.parametrize("command", [replay(), discard()])
async def test_command_that_is_recorded_late_does_not_change_a_newer_row(
    pool: Pool, letter: LetterId, command: LetterCommand
) -> None:
    """The row tells of a later step's failure by then; the record of the earlier step is its own."""
    later = letter.model_copy(update={"step": "ship"})
    await _park(pool, letter, 1)
    await _park(pool, later, 2)
    asked = given(letter, command)
    assert (await records.take_command(pool, asked, command, yes(command))).obey
    assert (await _said(pool, later))[:2] == (RunStatus.DLQ_PENDING, LetterStatus.PENDING)


async def test_cancellation_that_is_recorded_late_does_not_end_a_newer_row(pool: Pool, letter: LetterId) -> None:
    """A run that was reset after it was canceled is parked elsewhere by now."""
    later = letter.model_copy(update={"step": "ship"})
    await _park(pool, letter, 1)
    await _park(pool, later, 2)
    await records.put_outcome(pool, letter, outcome(Ending.CANCELED, None, revision=CYCLE + 1))
    assert (await _said(pool, letter))[1] is LetterStatus.DISCARDED
    assert (await _said(pool, later))[:2] == (RunStatus.DLQ_PENDING, LetterStatus.PENDING)


async def test_row_that_has_changed_since_it_was_compared_is_not_corrected(pool: Pool, letter: LetterId) -> None:
    """Temporal said that the run had ended; it was reset since, and has reported that it is parked."""
    await _park(pool, letter, 1)
    command = replay()
    assert (await records.take_command(pool, given(letter, command), command, yes(command))).obey
    (seen,) = await list_unheard_runs(pool, letter.tenant, timedelta(0), 10, None)
    assert (seen.run_id, seen.status) == (letter.run_id, RunStatus.RUNNING)
    await _park(pool, letter, 2)
    await correct_run(pool, seen, RunStatus.SUCCESS, START)
    assert await _said(pool, letter) == (RunStatus.DLQ_PENDING, LetterStatus.PENDING, KeyStatus.PROCESSING)
