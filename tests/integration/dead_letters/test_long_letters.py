"""A queue, or a parked run, that gets so many messages that its history is cut short (continue-as-new)."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from redrive.categories import Category
from redrive.contracts import FailedCycle
from redrive.dead_letter_queue import signal_queue
from redrive.dead_letters import (
    Exhausted,
    LetterId,
    LetterSignal,
    LetterStatus,
    OperationKind,
    OperationOptions,
    RunSignal,
    Verb,
)
from redrive.store.dead_letters import records
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case, wording


async def test_no_message_is_lost_when_the_history_is_cut_short(case: Case) -> None:
    """Commands, garbage and duplicates that arrive meanwhile are all answered and written down."""
    await case.park("second")
    queue = case.queue
    began = (await queue.describe()).run_id
    refused = await case.command(Verb.REPLAY, request_id="before", from_step="nowhere")
    heavy = case.addressed(reason="x" * 900_000)
    for batch in range(6):
        await asyncio.gather(
            queue.signal(Verb.REPLAY, heavy),
            *(
                queue.signal(Verb.REPLAY, case.addressed(request_id=f"{batch}-{number}", from_step="nowhere"))
                for number in range(4)
            ),
        )

    async def cut_short() -> bool:
        return (await queue.describe()).run_id != began

    await eventually(cut_short)
    rows = await case.refusals(1 + 6 * 5)
    expected = {"before"} | {f"{batch}-{number}" for batch in range(6) for number in range(4)}
    assert {row["request_id"] for row in rows if row["actor"] == "ada"} == expected
    assert len(rows) == 1 + 6 * 5
    assert await case.command(Verb.REPLAY, request_id="before") == refused
    assert (await case.record() or {})["status"] == LetterStatus.PENDING
    await case.works_still()
    await case.until_letter("second", LetterStatus.REPLAYED)


async def test_no_report_is_lost_when_the_history_is_cut_short(case: Case) -> None:
    """Large reports arrive while the queue continues as new: each has its record."""
    await case.park("second")
    began = (await case.queue.describe()).run_id
    names = [f"run-{case.name}-{number}" for number in range(100)]
    letters = [case.letter("second").model_copy(update={"run_id": name}) for name in names]
    reports = [report_of(letter, "x" * 60_000) for letter in letters]
    await asyncio.gather(*(signal_queue(case.temporal, case.task_queue, report) for report in reports))

    async def all_recorded() -> bool:
        (row,) = await case.rows("SELECT count(*) AS n FROM redrive.dead_letters WHERE tenant = $1", case.tenant)
        return bool(row["n"] == 1 + len(reports))

    await eventually(all_recorded)
    await signal_queue(case.temporal, case.task_queue, reports[0])

    async def cut_short() -> bool:
        return (await case.queue.describe()).run_id != began

    await eventually(cut_short)


def report_of(letter: LetterId, payload: str = "") -> Exhausted:
    """Return a report that can be read."""
    now = datetime.now(UTC)
    cycle = FailedCycle(
        step=letter.step,
        cycle=1,
        category=Category.UNKNOWN,
        error_type="E",
        message="m",
        attempts=[],
        stack="",
        build_id="",
    )
    return Exhausted(
        letter=letter,
        pipeline="p",
        cycle=cycle,
        payload=payload,
        config=OperationOptions(kind=OperationKind.ACTIVITY),
        correlation_id="c",
        key=None,
        started_at=now,
        at=now,
        revision=1,
    )


@pytest.mark.parametrize("to", ["queue", "run", "report"])
async def test_garbage_whose_record_was_not_heard_of_is_recorded_once(
    case: Case, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """The line is written and the worker does not learn of it: another activity writes it again, and one line stays."""
    await case.park("second")
    put, asked = records.put_malformed, 0

    async def put_and_break(*given: Any) -> None:
        nonlocal asked
        asked += 1
        # Both may be under way at once.
        is_first = asked == 1
        await put(*given)
        if is_first:
            raise OSError("the connection broke after the commit")

    monkeypatch.setattr(records, "put_malformed", put_and_break)
    target = case.run if to == "run" else case.queue
    of_another = case.letter("third").model_copy(update={"tenant": "another"})
    name = LetterSignal.EXHAUSTED if to == "report" else Verb.REPLAY
    for number in range(2):
        await target.signal(name, report_of(of_another) if to == "report" else {"nonsense": number})

    async def all_asked() -> bool:
        # More, if the machine is slow: a workflow task that is late is repeated.
        return asked >= 3

    await eventually(all_asked)
    assert len(await case.refusals(2)) == 2
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
