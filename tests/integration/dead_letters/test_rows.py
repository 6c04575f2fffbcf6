"""The rows of runs that were parked: what lists show follows each command to its end."""

from datetime import timedelta

from redrive import RunStatus
from redrive.dead_letters import LetterStatus, Mode, Verb
from tests.integration.dead_letters.lab import Case


async def test_row_of_a_parked_run_begins_when_the_run_did(case: Case) -> None:
    """Not when it failed."""
    await case.park("second")
    row = await case.until_row(RunStatus.DLQ_PENDING)
    started = (await case.run.describe()).start_time
    assert abs(row["started_at"] - started) < timedelta(seconds=1)
    assert (row["failed_step"], row["closed_at"]) == ("second", None)


async def test_row_of_a_partial_run_says_so(case: Case) -> None:
    """After a STEP_ONLY replay it is PARTIAL, after `continue` it ends."""
    await case.park("second")
    case.mend()
    await case.command(Verb.REPLAY, mode=Mode.STEP_ONLY)
    row = await case.until_row(RunStatus.PARTIAL)
    assert row["closed_at"] is None
    await case.redrive.dead_letters.go_on(case.run_id, requested_by="ada", reason="go")
    row = await case.until_row(RunStatus.SUCCESS)
    assert row["closed_at"] is not None
    assert row["failed_step"] is None


async def test_row_of_a_run_whose_last_step_was_resolved_has_ended(case: Case) -> None:
    """No step of it runs any more that could write it."""
    await case.park("third")
    await case.command(Verb.RESOLVE, "third", output={"step": "by hand", "n": 1})
    row = await case.until_row(RunStatus.SUCCESS)
    assert row["closed_at"] is not None
    assert row["failed_step"] is None
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS


async def test_row_of_a_discarded_run_stays_failed(case: Case) -> None:
    """Also when another of its letters is closed with it."""
    await case.park("third")
    case.service.broken.add("first")
    await case.command(Verb.REPLAY, "third", from_step="first")
    await case.until_letter("first", LetterStatus.PENDING)
    await case.until_letter("third", LetterStatus.PENDING)
    assert (await case.command(Verb.DISCARD, "first")).accepted
    await case.until_letter("third", LetterStatus.DISCARDED)
    row = await case.until_row(RunStatus.FAILED)
    assert row["closed_at"] is not None


async def test_row_of_a_canceled_run_says_so(case: Case) -> None:
    """The letter is closed with it."""
    await case.park("second")
    await case.redrive.cancel(case.run_id, reason="enough")
    await case.until_letter("second", LetterStatus.DISCARDED)
    assert (await case.until_row(RunStatus.CANCELED))["closed_at"] is not None
