"""PostgreSQL is restored to an earlier point, and Temporal has kept going: the sweep lets every row follow its run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import Client

from redrive import Redrive, RunStatus
from redrive.connection import connect_temporal, database_url
from redrive.contracts import StepStatus
from redrive.dead_letters import LetterStatus, Mode, Verb
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.visibility import execution_status
from tests.conftest import eventually, owner_url
from tests.integration.dead_letters.lab import Case
from tests.integration.dead_letters.sweeps import sweep_until
from tests.integration.dead_letters.test_resets import reset_to_the_first_park

KEY = "k"
TABLES = ("runs", "dead_letters", "idempotency_keys")
Act = Callable[[Case], Awaitable[object]]


async def nothing(case: Case) -> None:
    """Begin before the run is started."""


async def run(case: Case) -> None:
    """Start a run, and stop it in its first step."""
    case.service.is_open.clear()
    await case.start(key=KEY)
    await _called(case, 1)


async def park(case: Case) -> None:
    """Start a run that parks at its second step."""
    await case.park("second", key=KEY)


async def replay(case: Case) -> None:
    """Let a parked run be replayed, and stop it in the replayed step."""
    await park(case)
    case.mend()
    case.service.is_open.clear()
    assert (await case.command(Verb.REPLAY)).accepted
    await _called(case, 3)


async def stop_after_one_step(case: Case) -> None:
    """Replay the dead step alone."""
    case.mend()
    assert (await case.command(Verb.REPLAY, mode=Mode.STEP_ONLY)).accepted
    await case.until(RunStatus.PARTIAL)


async def park_and_stop_after_one_step(case: Case) -> None:
    """Let a run wait for `continue`."""
    await park(case)
    await stop_after_one_step(case)


async def discard(case: Case) -> None:
    """Let a parked run fail."""
    await park(case)
    assert (await case.command(Verb.DISCARD)).accepted
    await case.until(RunStatus.FAILED)


async def succeed(case: Case) -> None:
    """Let a run that is parked, stopped or not started end well."""
    if not case.run_id:
        await case.start(key=KEY)
    elif case.service.broken:
        case.mend()
        assert (await case.command(Verb.REPLAY)).accepted
    case.service.is_open.set()
    await case.until(RunStatus.SUCCESS)


async def go_to_a_dead_step(case: Case) -> None:
    """Let a run that was stopped go on, to its second step, which fails."""
    case.service.broken.add("second")
    case.service.is_open.set()
    await case.until_letter("second", LetterStatus.PENDING)


async def resolve(case: Case) -> None:
    """Let the run go on with an output that was given by hand."""
    assert (await case.command(Verb.RESOLVE, output={"step": "by hand", "n": 1})).accepted
    await case.until(RunStatus.SUCCESS)


async def cancel(case: Case) -> None:
    """Cancel the run."""
    await case.redrive.cancel(case.run_id, reason="a test")
    await case.until(RunStatus.CANCELED)


async def terminate(case: Case) -> None:
    """End the run without a word of its own."""
    await case.run.terminate("a test")


async def go_on(case: Case) -> None:
    """Continue a run that waits for it."""
    answer = await case.redrive.dead_letters.go_on(case.run_id, requested_by="ada", reason="a test")
    assert answer.accepted


async def go_on_to_the_end(case: Case) -> None:
    """Continue, and succeed."""
    await go_on(case)
    await case.until(RunStatus.SUCCESS)


async def go_on_to_another_dead_step(case: Case) -> None:
    """Continue, and park at the last step."""
    case.service.broken.add("third")
    await go_on(case)
    await case.until_letter("third", LetterStatus.PENDING)


async def reset(case: Case) -> None:
    """Take a run that has ended back to where it was parked."""
    # The discard once more would end it once more, unless its report is recorded first.
    await reset_to_the_first_park(case, repeats_signals=False)
    await case.until_letter("second", LetterStatus.PENDING)


async def _called(case: Case, count: int) -> None:
    async def is_called() -> bool:
        return len(case.service.calls) >= count

    await eventually(is_called)


# What the run has done when the database is backed up, and what it does then.
HISTORIES: tuple[tuple[Act, Act], ...] = (
    (nothing, succeed),
    (nothing, park),
    (run, succeed),
    (run, go_to_a_dead_step),
    (run, cancel),
    (park, succeed),
    (park, stop_after_one_step),
    (park, resolve),
    (park, cancel),
    (park, terminate),
    (replay, succeed),
    (replay, cancel),
    (park_and_stop_after_one_step, go_on_to_the_end),
    (park_and_stop_after_one_step, go_on_to_another_dead_step),
    (discard, reset),
)


@pytest.fixture
async def redrive(lab: Redrive, lab_settings: Settings) -> AsyncIterator[Redrive]:
    """A client of the worker that keeps keys in the database."""
    claims = PostgresClaims(database_url(lab_settings), max_size=4)
    client, registry = await connect_temporal(lab_settings), lab._registry  # which knows the pipelines
    async with Redrive(client, task_queue=lab_settings.task_queue, registry=registry, claims=claims) as keyed:
        yield keyed


@pytest.fixture
async def temporal(lab_settings: Settings) -> Client:
    """A client of the file's servers."""
    return await connect_temporal(lab_settings)


async def test_rows_that_were_restored_follow_their_runs(
    redrive: Redrive, temporal: Client, lab_settings: Settings, stack: StackInfo
) -> None:
    """Nobody repairs anything: Temporal, the row, the record and the key say the same, wherever the run is by now."""
    cases = {
        f"{before.__name__}, {after.__name__}": Case(redrive, temporal, owner_url(stack), lab_settings.task_queue)
        for before, after in HISTORIES
    }
    backups = await asyncio.gather(
        *(_back_up(case, *history) for case, history in zip(cases.values(), HISTORIES, strict=True))
    )
    # What is still to be written would be written to the restored rows.
    assert await _differences_after_sweeps(cases, lab_settings) == {}
    for case, backup in zip(cases.values(), backups, strict=True):
        await _restore(case, backup)
    # A backup of which nothing differs would prove nothing.
    assert cases.keys() - await _differing(cases) == {"nothing, succeed"}
    assert await _differences_after_sweeps(cases, lab_settings) == {}


async def _differences_after_sweeps(cases: dict[str, Case], settings: Settings) -> dict[str, list[str]]:
    """Return what the sweep does not repair."""

    async def is_right() -> bool:
        return not await _differing(cases)

    await sweep_until(is_right, next(iter(cases.values())), settings)
    return await _differing(cases)


async def _differing(cases: dict[str, Case]) -> dict[str, list[str]]:
    found = {name: await _differences(case) for name, case in cases.items()}
    return {name: differences for name, differences in found.items() if differences}


async def _back_up(case: Case, before: Act, after: Act) -> dict[str, str]:
    """Back up the rows of a run between what it has done and what it does then."""
    await before(case)
    saved = {}
    for table in TABLES:
        sql = f"SELECT coalesce(jsonb_agg(to_jsonb(t)), '[]')::text AS rows FROM redrive.{table} AS t WHERE tenant = $1"  # noqa: S608 - our own names
        ((saved[table],),) = [row.values() for row in await case.rows(sql, case.tenant)]
    await after(case)
    return saved


async def _restore(case: Case, saved: dict[str, str]) -> None:
    for table, rows in saved.items():
        await case.rows(f"DELETE FROM redrive.{table} WHERE tenant = $1", case.tenant)  # noqa: S608 - our own names
        read = f"SELECT * FROM jsonb_populate_recordset(NULL::redrive.{table}, $1::text::jsonb)"  # noqa: S608 - the same
        await case.rows(f"INSERT INTO redrive.{table} {read}", rows)


async def _differences(case: Case) -> list[str]:
    """Return what of the records does not say what the run is. A run that has ended may have lost its row."""
    run = await case.view()
    status = execution_status(await case.run.describe())
    rows = await case.rows("SELECT status, closed_at FROM redrive.runs WHERE tenant = $1", case.tenant)
    keys = await case.rows("SELECT status, run_status FROM redrive.idempotency_keys WHERE tenant = $1", case.tenant)
    letters = await case.rows("SELECT * FROM redrive.dead_letters WHERE tenant = $1", case.tenant)
    waiting = [(each["step"], each["cycle"]) for each in letters if _waits(each)]
    parked = [(each.name, each.cycle) for each in run.steps if each.status is StepStatus.DLQ and not status.closed]
    word = "completed" if status is RunStatus.SUCCESS else "failed"
    told: dict[str, list[Any]] = {
        "row": [(row["status"], row["closed_at"] is not None) for row in rows],
        "key": [(key["status"], key["run_status"]) for key in keys],
        "records": waiting,
    }
    allowed: dict[str, list[list[Any]]] = {
        "row": [[(status, status.closed)], *([] if parked else [[]])],
        "key": [[(word, status) if status.closed else ("processing", None)], []],
        "records": [parked],
    }
    return [f"{what}: {told[what]}, the run is {status}" for what in told if told[what] not in allowed[what]]


def _waits(letter: dict[str, object]) -> bool:
    return not LetterStatus(str(letter["status"])).closed and not letter["orphaned"]
