"""A dead letter that gets so many messages that its history is cut short (continue-as-new)."""

import asyncio

from redrive.dead_letters import Answer, LetterStatus, RunSignal, Verb
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case, wording


async def test_no_message_is_lost_when_the_history_is_cut_short(case: Case) -> None:
    """Orders, garbage and duplicates that arrive meanwhile are all answered and written down."""
    await case.park("second")
    letter = case.letter_workflow("second")
    began = (await letter.describe()).run_id
    refused = await case.command(Verb.REPLAY, request_id="before", from_step="nowhere")
    heavy = wording(reason="x" * 900_000)
    for batch in range(6):
        _, _, *answers = await asyncio.gather(
            letter.signal(Verb.REPLAY, heavy),
            letter.signal(Verb.REPLAY, wording(request_id=f"signal-{batch}", from_step="nowhere")),
            *(case.command(Verb.REPLAY, request_id=f"{batch}-{number}", from_step="nowhere") for number in range(3)),
        )
        assert not any(isinstance(answer, Answer) and answer.accepted for answer in answers)

    async def cut_short() -> bool:
        return (await letter.describe()).run_id != began

    await eventually(cut_short)
    rows = await case.refusals(1 + 6 * 5)
    expected = {"before"} | {f"signal-{batch}" for batch in range(6)}
    expected |= {f"{batch}-{number}" for batch in range(6) for number in range(3)}
    assert {row["request_id"] for row in rows if row["actor"] == "ada"} == expected
    # Garbage has no request id: a workflow task that Temporal has to repeat may record it again.
    assert len([row for row in rows if row["actor"] == "ada"]) == len(expected)
    assert len(rows) >= 1 + 6 * 5
    assert await case.command(Verb.REPLAY, request_id="before") == refused
    assert (await case.record() or {})["status"] == LetterStatus.PENDING
    await case.works_still()
    await case.until_letter("second", LetterStatus.REPLAYED)


async def test_a_parked_run_that_gets_many_signals_cuts_its_history_short(case: Case) -> None:
    """It stays parked at the same step and cycle, and takes the command that comes then."""
    await case.park("second")
    run = case.temporal.get_workflow_handle(case.run_id)
    began = (await run.describe()).run_id
    for number in range(6):
        await run.signal(Verb.REPLAY, wording(request_id=f"heavy-{number}", reason="x" * 900_000))

    async def cut_short() -> bool:
        # With the next task: one that Temporal has to repeat does not tell how long the history is.
        await run.signal(RunSignal.REPORT)
        description = await run.describe()
        return description.run_id != began and description.raw_description.workflow_execution_info.history_length < 100

    await eventually(cut_short)
    assert (await case.record() or {})["cycle"] == 1
    assert (await case.record() or {})["status"] == LetterStatus.PENDING
    await case.works_still()
    await case.until_letter("second", LetterStatus.REPLAYED)
