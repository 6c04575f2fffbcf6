"""Every write of a dead letter's record: once, twice, late, and many at once."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import TypeAlias

import asyncpg
import pytest

from redrive.contracts import RunStatus
from redrive.dead_letters import (
    MAX_REPLAYS,
    Answer,
    Continue,
    Ending,
    LetterCommand,
    LetterId,
    LetterState,
    LetterStatus,
    MalformedCommand,
    Mode,
    Verb,
    refusal,
)
from redrive.errors import InvalidInput
from redrive.postgres.tenancy import Pool
from redrive.store import runs
from redrive.store.audit import Action, verify
from redrive.store.dead_letters import records as dead_letters
from redrive.store.dead_letters.commands import first_answer
from redrive.store.dead_letters.lists import audit_trail, get_letter
from redrive.store.dead_letters.models import AuditEntry, LetterRecord
from redrive.store.runs import put_continue
from tests.integration.store.letters import (
    CYCLE,
    START,
    discard,
    exhausted,
    given,
    new_letter,
    no,
    outcome,
    replay,
    resolve,
    yes,
)

Owner: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


async def _record(pool: Pool, letter: LetterId) -> LetterRecord:
    record = await get_letter(pool, letter.tenant, letter.workflow_id)
    assert record is not None
    return record


async def _trail(pool: Pool, letter: LetterId) -> list[AuditEntry]:
    return await audit_trail(pool, letter.tenant, letter.workflow_id)


async def _run_status(owner: Owner, letter: LetterId) -> str | None:
    status: str | None = await owner.fetchval("SELECT status FROM runs WHERE run_id = $1", letter.run_id)
    return status


async def test_exhausted_step_becomes_a_whole_record(pool: Pool, tenant: str) -> None:
    """Identity, failure, snapshots and history are all there, and the run's row with them."""
    letter = new_letter(tenant)
    recorded = await dead_letters.record_exhausted(pool, exhausted(letter, key="k-1", correlation_id="c-1"))
    assert recorded.is_new
    assert (recorded.state.status, recorded.state.cycle) == (LetterStatus.PENDING, 1)
    record = await _record(pool, letter)
    assert record.letter == letter
    assert (record.category, record.message, record.stack) == (
        "provider_5xx",
        "the service is broken",
        "Traceback: here",
    )
    assert (record.attempt_count, len(record.attempts)) == (2, 2)
    assert (record.first_failed_at, record.last_failed_at) == (START, START + timedelta(seconds=2))
    assert (record.idempotency_key, record.correlation_id, record.build_id) == ("k-1", "c-1", "build-1")
    assert record.payload == {"n": 1}
    [entry] = record.failure_history
    assert (entry.cycle, entry.replayed_by, entry.mode, len(entry.attempts)) == (1, None, None, 2)
    listed = await runs.list_runs(pool, runs.RunFilter(tenant=tenant))
    assert [(run.run_id, run.status, run.failed_step) for run in listed.rows] == [
        (letter.run_id, RunStatus.DLQ_PENDING, "charge")
    ]


async def test_same_cycle_again_changes_nothing(pool: Pool, tenant: str) -> None:
    """A retried write has the answer of the first, its alert included."""
    letter = new_letter(tenant)
    first = await dead_letters.record_exhausted(pool, exhausted(letter))
    record = await _record(pool, letter)
    second = await dead_letters.record_exhausted(pool, exhausted(letter))
    assert (first.is_new, second.is_new) == (True, False)
    assert (first.alert_count, second.alert_count) == (1, 1)
    assert second.state == first.state
    assert await _record(pool, letter) == record
    assert len(await _trail(pool, letter)) == 1


async def test_replay_that_fails_appends_a_cycle(pool: Pool, tenant: str) -> None:
    """The history keeps who opened which cycle, and the record is pending again."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.put_accepted(pool, letter, replay(mode=Mode.STEP_ONLY), yes(replay()))
    later = START + timedelta(hours=1)
    await dead_letters.record_exhausted(pool, exhausted(letter, 2, message="still broken", at=later))
    record = await _record(pool, letter)
    assert (record.status, record.cycle, record.replay_count) == (LetterStatus.PENDING, 2, 1)
    assert [(entry.cycle, entry.replayed_by, entry.mode, entry.reason) for entry in record.failure_history] == [
        (1, None, None, None),
        (2, "alice", Mode.STEP_ONLY, "fixed"),
    ]
    assert record.first_failed_at == later


async def test_late_write_of_an_older_cycle_is_ignored(pool: Pool, tenant: str) -> None:
    """A try of the first write that arrives after the second cycle neither reverts it nor alerts."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.record_exhausted(pool, exhausted(letter, 2))
    record = await _record(pool, letter)
    late = await dead_letters.record_exhausted(pool, exhausted(letter))
    assert (late.is_new, late.alert_count, late.state.cycle) == (False, 0, 2)
    assert await _record(pool, letter) == record


async def test_closed_letter_opens_anew_without_its_resolution(pool: Pool, tenant: str) -> None:
    """A step that was replayed by the dead letter of a later step may die again; nobody's replay of its own did it."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.put_accepted(pool, letter, replay(), yes(replay()))
    await dead_letters.put_outcome(pool, letter, outcome(Ending.SUCCEEDED))
    await dead_letters.record_exhausted(pool, exhausted(letter, 3))
    record = await _record(pool, letter)
    assert (record.status, record.resolution, record.resolved_by) == (LetterStatus.PENDING, None, None)
    assert record.failure_history[-1].replayed_by is None


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "\ufffe", "'; DROP TABLE dead_letters; --", "%s {} $1"])
async def test_any_text_can_be_stored(pool: Pool, tenant: str, text: str) -> None:
    """What Postgres refuses in text or JSON must not keep a record from being written for ever."""
    letter = new_letter(tenant)
    message = exhausted(letter, message=text or "x", payload={text: [text, float("nan"), float("inf")]})
    await dead_letters.record_exhausted(pool, message)
    command = replay("r" + text.replace("\ud800", ""))  # a request id is checked where it comes in
    await dead_letters.put_accepted(pool, letter, command, yes(command))
    assert await first_answer(pool, letter, command.request_id) is not None
    shown = text.replace("\0", "\ufffd").replace("\ud800", "\ufffd\ufffd\ufffd")
    assert (await _record(pool, letter)).message == shown


@pytest.mark.parametrize("tenant_name", ["", "*"])
async def test_a_letter_of_no_tenant_is_refused(pool: Pool, tenant_name: str) -> None:
    """The name that reads all tenants writes none."""
    letter = new_letter(tenant_name)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await dead_letters.record_exhausted(pool, exhausted(letter))
    with pytest.raises(InvalidInput):
        await dead_letters.load_state(pool, letter)


async def test_accepted_command_gets_its_first_answer_for_ever(pool: Pool, tenant: str) -> None:
    """A try that arrives after the replay failed again does not start another one."""
    letter, command = new_letter(tenant), replay()
    await dead_letters.record_exhausted(pool, exhausted(letter))
    first = await dead_letters.put_accepted(pool, letter, command, yes(command))
    assert await dead_letters.put_accepted(pool, letter, command, yes(command)) == first
    assert (await _record(pool, letter)).replay_count == 1
    await dead_letters.record_exhausted(pool, exhausted(letter, 2))
    assert await dead_letters.put_accepted(pool, letter, command, no(command)) == first
    assert await dead_letters.put_refused(pool, letter, command, no(command), orphaned=True) == first
    record = await _record(pool, letter)
    assert (record.status, record.replay_count, record.orphaned) == (LetterStatus.PENDING, 1, False)
    assert [entry.action for entry in await _trail(pool, letter)] == [
        "dead_lettered",
        "replay_requested",
        "dead_lettered",
    ]


async def test_accepted_command_is_obeyed_until_its_outcome(pool: Pool, tenant: str) -> None:
    """It has its answer for ever, but the run carries it out only while it is the last word on this cycle."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    first = given(letter, replay("r1"))
    assert await dead_letters.take_command(pool, first, first.command, yes(first.command)) == (yes(replay("r1")), True)
    # The run crashed before its history had the answer, and asks again.
    again = given(letter, replay("r1"), number=2)
    assert await dead_letters.take_command(pool, again, again.command, no(again.command)) == (yes(replay("r1")), True)
    after = outcome(Ending.BLOCKED, blocked_by="first", revision=CYCLE + 3).model_copy(update={"after": CYCLE + 2})
    assert await dead_letters.put_outcome(pool, letter, after) is LetterStatus.PENDING
    # So did the outcome's task: what follows it follows the second one.
    for last in (after.model_copy(update={"revision": CYCLE + 4}), after.model_copy(update={"after": CYCLE + 4})):
        assert await dead_letters.put_outcome(pool, letter, last) is LetterStatus.PENDING
    assert (await _record(pool, letter)).replay_count == 1
    await dead_letters.record_exhausted(pool, exhausted(letter, 2))
    for cycle in (1, 2):
        late = given(letter, replay("r1"), cycle)
        assert await dead_letters.take_command(pool, late, late.command, yes(late.command)) == (
            yes(replay("r1")),
            False,
        )
    assert (await _record(pool, letter)).status is LetterStatus.PENDING


@pytest.mark.parametrize("cycle", [1, 3])
async def test_command_waits_for_a_record_that_is_behind(pool: Pool, tenant: str, cycle: int) -> None:
    """No record, one of an earlier cycle, and one that says otherwise: the run reports again before it is accepted."""
    letter, command = new_letter(tenant), replay()
    asked = given(letter, command, cycle)
    with pytest.raises(dead_letters.RecordBehind):
        await dead_letters.take_command(pool, asked, command, yes(command))
    await dead_letters.record_exhausted(pool, exhausted(letter, 2))
    with pytest.raises(dead_letters.RecordBehind):
        await dead_letters.take_command(pool, asked, command, yes(command))
    assert await first_answer(pool, letter, command.request_id) is None
    again = exhausted(letter, cycle).model_copy(update={"again": True, "revision": 9 * CYCLE})
    assert (await dead_letters.record_exhausted(pool, again)).is_new
    assert (await dead_letters.take_command(pool, asked, command, yes(command))).obey


async def test_report_made_again_opens_the_record(pool: Pool, tenant: str) -> None:
    """The run is parked there still: a record that was closed is pending again, with a line, and without an alert."""
    letter, command = new_letter(tenant), discard()
    await dead_letters.record_exhausted(pool, exhausted(letter))
    asked = given(letter, command)
    assert (await dead_letters.take_command(pool, asked, command, yes(command))).obey
    again = exhausted(letter).model_copy(update={"again": True, "revision": 2 * CYCLE})
    late = exhausted(letter).model_copy(update={"again": True, "revision": CYCLE})
    for report, status in (
        (late, LetterStatus.DISCARDED),
        (again, LetterStatus.PENDING),
        (again, LetterStatus.PENDING),
    ):
        recorded = await dead_letters.record_exhausted(pool, report)
        assert (recorded.is_new, recorded.alert_count, recorded.state.status) == (False, 0, status)
    record = await _record(pool, letter)
    assert (record.resolution, record.cycle, len(record.failure_history)) == (None, 1, 1)
    assert [entry.action for entry in await _trail(pool, letter)] == ["dead_lettered", "discarded", "reopened"]


async def test_continue_is_audited_once_whatever_its_id(pool: Pool, tenant: str) -> None:
    """Also at once, with an id that another command had, and with one that Postgres could not store."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.put_accepted(pool, letter, replay("r1"), yes(replay("r1")))
    for request_id, accepted in (("r1", False), ("c1", True), ("c\0", True)):
        command = Continue(request_id=request_id, requested_by="alice", reason="go on")
        answer = Answer(request_id=request_id, accepted=accepted, message="")
        await asyncio.gather(*(put_continue(pool, letter, command, answer) for _ in range(5)))
    assert [entry.action for entry in await _trail(pool, letter)][2:] == ["continued", "continued"]


async def test_refused_command_stays_refused(pool: Pool, tenant: str) -> None:
    """Two tries of one command that saw different states have one answer: the first that was written."""
    letter, command = new_letter(tenant), replay()
    await dead_letters.record_exhausted(pool, exhausted(letter))
    first = await dead_letters.put_refused(pool, letter, command, no(command))
    assert await dead_letters.put_accepted(pool, letter, command, yes(command)) == first
    assert (await _record(pool, letter)).status is LetterStatus.PENDING
    assert await first_answer(pool, letter, command.request_id) == first
    assert len(await _trail(pool, letter)) == 2


async def test_command_that_comes_too_late_is_refused_and_audited(pool: Pool, tenant: str) -> None:
    """The record has the last word: a command that the workflow accepted from an older state is refused."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.put_accepted(pool, letter, resolve("r1"), yes(resolve("r1")))
    late = discard("r2")
    answer = await dead_letters.put_accepted(pool, letter, late, yes(late))
    assert (answer.accepted, answer.status) == (False, LetterStatus.RESOLVED)
    assert (await _trail(pool, letter))[-1].action == Action.REFUSED
    missing = new_letter(tenant)
    assert not (await dead_letters.put_accepted(pool, missing, late, yes(late))).accepted


@pytest.mark.parametrize(
    ("command", "expected"),
    [(resolve(), ("resolved", "bob", "RUNNING")), (discard(), ("discarded", "carol", "FAILED"))],
)
async def test_closing_command_is_recorded_with_its_run(
    pool: Pool, owner: Owner, tenant: str, command: LetterCommand, expected: tuple[str, str, str]
) -> None:
    """Who closed it is kept, and the list of runs follows."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    for _ in range(2):
        await dead_letters.put_accepted(pool, letter, command, yes(command))
    record = await _record(pool, letter)
    assert (record.status, record.resolved_by, await _run_status(owner, letter)) == expected


async def test_refusal_because_the_run_is_gone_marks_the_letter(pool: Pool, tenant: str) -> None:
    """It stays pending, orphaned, and a second refusal of the same command adds nothing."""
    letter, command = new_letter(tenant), replay()
    await dead_letters.record_exhausted(pool, exhausted(letter))
    for _ in range(2):
        await dead_letters.put_refused(pool, letter, command, no(command), orphaned=True)
    record = await _record(pool, letter)
    assert (record.status, record.orphaned, record.version) == (LetterStatus.PENDING, True, 2)


async def test_malformed_command_is_audited_once_for_its_id(pool: Pool, tenant: str) -> None:
    """A retried write with the caller's id is one line; without an id each call is one."""
    letter, malformed = new_letter(tenant), MalformedCommand(verb=Verb.REPLAY, problem="mode: \0?")
    await dead_letters.record_exhausted(pool, exhausted(letter))
    for _ in range(2):
        await dead_letters.put_malformed(pool, letter, malformed, "signal-1")
    assert len(await _trail(pool, letter)) == 2
    await dead_letters.put_malformed(pool, letter, malformed)
    last = (await _trail(pool, letter))[-1]
    assert (last.actor, last.after) == ("unknown", {"verb": "replay", "problem": "mode: \ufffd?", "count": 1})


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (Ending.SUCCEEDED, LetterStatus.REPLAYED),
        (Ending.BLOCKED, LetterStatus.PENDING),
        (Ending.CANCELED, LetterStatus.DISCARDED),
    ],
)
async def test_outcome_is_recorded_once(pool: Pool, tenant: str, ending: Ending, status: LetterStatus) -> None:
    """The second write of an outcome changes nothing and adds no line."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.put_accepted(pool, letter, replay(), yes(replay()))
    assert [await dead_letters.put_outcome(pool, letter, outcome(ending)) for _ in range(2)] == [status, status]
    record = await _record(pool, letter)
    assert record.status is status
    assert [entry.action for entry in await _trail(pool, letter)][2:] == ["replay_outcome"]


@pytest.mark.parametrize("ending", list(Ending))
async def test_late_outcome_is_ignored(pool: Pool, tenant: str, ending: Ending) -> None:
    """Neither a record that died again nor a replay that is under way is touched by an older report."""
    letter = new_letter(tenant)
    late = outcome(ending, "r1", revision=CYCLE + 2)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.record_exhausted(pool, exhausted(letter, 2))
    pending = await _record(pool, letter)
    assert await dead_letters.put_outcome(pool, letter, late) is LetterStatus.PENDING
    assert await _record(pool, letter) == pending
    asked = given(letter, replay("r2"), 2)
    await dead_letters.take_command(pool, asked, asked.command, yes(asked.command))
    replaying = await _record(pool, letter)
    assert await dead_letters.put_outcome(pool, letter, late) is LetterStatus.REPLAYING
    assert await _record(pool, letter) == replaying


async def test_outcome_does_not_overtake_the_report_before_it(pool: Pool, tenant: str) -> None:
    """The dead letter's workflow has that report, and writes both in sequence."""
    letter = new_letter(tenant)
    canceled = outcome(Ending.CANCELED, None, revision=2 * CYCLE + 1).model_copy(update={"after": 2 * CYCLE})
    assert await dead_letters.put_outcome(pool, letter, canceled) is None
    await dead_letters.record_exhausted(pool, exhausted(letter))
    assert await dead_letters.put_outcome(pool, letter, canceled) is None
    await dead_letters.record_exhausted(pool, exhausted(letter, 2))
    assert await dead_letters.put_outcome(pool, letter, canceled) is LetterStatus.DISCARDED


async def test_blocked_letter_succeeds_with_the_command_that_it_waited_for(pool: Pool, tenant: str) -> None:
    """After the earlier step was replayed the run comes by again, still under the first command."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.put_accepted(pool, letter, replay(), yes(replay()))
    for step in ("second", "second", "first"):
        await dead_letters.put_outcome(pool, letter, outcome(Ending.BLOCKED, blocked_by=step))
        state = await dead_letters.load_state(pool, letter)
        assert state is not None
        assert state.blocked_by == step
    await dead_letters.put_outcome(pool, letter, outcome(Ending.SUCCEEDED))
    record = await _record(pool, letter)
    assert (record.status, record.blocked_by) == (LetterStatus.REPLAYED, None)
    assert Counter(entry.action for entry in await _trail(pool, letter))["replay_outcome"] == 3


async def test_cancellation_reaches_a_letter_whatever_command_is_under_way(
    pool: Pool, owner: Owner, tenant: str
) -> None:
    """The run did not know the last command yet when it was canceled."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.put_accepted(pool, letter, replay("r2"), yes(replay("r2")))
    await dead_letters.put_outcome(pool, letter, outcome(Ending.CANCELED, "r1"))
    assert (await _record(pool, letter)).status is LetterStatus.DISCARDED
    assert await _run_status(owner, letter) == "CANCELED"


async def test_outcome_without_a_record_is_nothing(pool: Pool, tenant: str) -> None:
    """There is nothing to change, and nothing to raise about."""
    assert await dead_letters.put_outcome(pool, new_letter(tenant), outcome(Ending.SUCCEEDED)) is None
    assert await dead_letters.load_state(pool, new_letter(tenant)) is None


async def test_orphan_is_news_once(pool: Pool, tenant: str) -> None:
    """Reconciling twice writes one line; a closed letter needs no run."""
    letter, closed = new_letter(tenant), new_letter(tenant)
    for each in (letter, closed):
        await dead_letters.record_exhausted(pool, exhausted(each))
    await dead_letters.put_accepted(pool, letter, replay(), yes(replay()))
    await dead_letters.put_accepted(pool, closed, discard(), yes(discard()))
    assert [await dead_letters.put_orphaned(pool, letter) for _ in range(2)] == [True, False]
    assert not await dead_letters.put_orphaned(pool, closed)
    assert not await dead_letters.put_orphaned(pool, new_letter(tenant))
    record = await _record(pool, letter)
    assert (record.status, record.orphaned) == (LetterStatus.PENDING, True)
    assert (await _trail(pool, letter))[-1].action == Action.ORPHANED


async def test_many_writers_of_one_letter_make_one_record(pool: Pool, tenant: str) -> None:
    """However many tries run at once, there is one new record, one alert and one answer for each command."""
    letter = new_letter(tenant)
    recorded = await asyncio.gather(*(dead_letters.record_exhausted(pool, exhausted(letter)) for _ in range(20)))
    assert sum(each.is_new for each in recorded) == 1
    assert {each.alert_count for each in recorded} == {1}
    calls: list[Awaitable[Answer]] = []
    for number in range(20):
        command = replay(f"r{number % 4}")
        calls.append(dead_letters.put_accepted(pool, letter, command, yes(command)))
    answers = await asyncio.gather(*calls)
    assert len({answer.request_id for answer in answers if answer.accepted}) == 1
    assert len({(answer.request_id, answer.accepted) for answer in answers}) == 4
    assert (await _record(pool, letter)).replay_count == 1
    assert len(await _trail(pool, letter)) == 5


async def test_many_letters_of_one_tenant_make_one_chain(pool: Pool, tenant: str) -> None:
    """Writers of a tenant wait for each other at the audit log; none fails, none leaves a gap."""
    letters = [new_letter(tenant) for _ in range(40)]
    await asyncio.gather(*(dead_letters.record_exhausted(pool, exhausted(letter)) for letter in letters * 2))
    commands: list[LetterCommand] = [replay(), discard(), resolve()]
    chosen = [(letter, commands[index % 3]) for index, letter in enumerate(letters)]
    await asyncio.gather(
        *(dead_letters.put_accepted(pool, letter, command, yes(command)) for letter, command in chosen)
    )
    [proof] = await verify(pool, tenant)
    assert (proof.entries, proof.first_broken) == (80, None)


async def test_ten_thousand_alike_are_one_alert(pool: Pool, owner: Owner, tenant: str) -> None:
    """Within the window only the first alerts; the next after it tells how many there were."""
    letters = [new_letter(tenant) for _ in range(30)]
    recorded = [await dead_letters.record_exhausted(pool, exhausted(letter)) for letter in letters]
    # The second sees to it that the others are told of later.
    assert [each.alert_count for each in recorded] == [1, -1] + [0] * 28
    await owner.execute("UPDATE alerts SET sent_at = sent_at - interval '11 minutes' WHERE tenant = $1", tenant)
    again = await dead_letters.record_exhausted(pool, exhausted(new_letter(tenant)))
    assert again.alert_count == 30
    other = await dead_letters.record_exhausted(pool, exhausted(new_letter(tenant), message="something else"))
    assert other.alert_count == 1


Write = Callable[[], Awaitable[object]]


@pytest.mark.parametrize("seed", range(3))
async def test_counters_equal_a_count_after_any_writes(pool: Pool, owner: Owner, tenant: str, seed: int) -> None:
    """Whatever is written, in whatever order and at once, the counters and the chain stay true."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    letters = [new_letter(tenant) for _ in range(8)]

    def write() -> Awaitable[object]:
        letter, request = chance.choice(letters), f"r{chance.randrange(6)}"
        commands: list[LetterCommand] = [replay(request), replay(request), resolve(request), discard(request)]
        command = chance.choice(commands)
        writes: list[Write] = [
            lambda: dead_letters.record_exhausted(pool, exhausted(letter, chance.randrange(1, 9))),
            lambda: dead_letters.put_accepted(pool, letter, command, yes(command)),
            lambda: dead_letters.put_refused(pool, letter, command, no(command), orphaned=chance.random() < 0.5),
            lambda: dead_letters.put_outcome(pool, letter, outcome(chance.choice(list(Ending)), request)),
            lambda: dead_letters.put_orphaned(pool, letter),
        ]
        return chance.choice(writes)()

    for _ in range(20):
        await asyncio.gather(*(write() for _ in range(8)))
    counted = await owner.fetch("SELECT status, count(*) FROM dead_letters WHERE tenant = $1 GROUP BY 1", tenant)
    kept = await owner.fetch("SELECT status, count FROM dead_letter_counts WHERE tenant = $1 AND count <> 0", tenant)
    assert sorted(map(tuple, counted)) == sorted(map(tuple, kept))
    [proof] = await verify(pool, tenant)
    assert proof.is_whole


async def test_report_of_a_task_that_is_done_again_is_no_second_failure(pool: Pool, tenant: str) -> None:
    """Its worker died after it had reported: the same failure has another revision then."""
    letter = new_letter(tenant)
    first = await dead_letters.record_exhausted(pool, exhausted(letter))
    again = exhausted(letter).model_copy(update={"revision": CYCLE + 7})
    assert first.is_new
    assert not (await dead_letters.record_exhausted(pool, again)).is_new
    record = await _record(pool, letter)
    assert (record.version, len(record.failure_history), len(await _trail(pool, letter))) == (1, 1, 1)
    # After a reset the same cycle may fail once more, at another time.
    other = exhausted(letter, at=START + timedelta(hours=1)).model_copy(update={"revision": CYCLE + 8})
    assert (await dead_letters.record_exhausted(pool, other)).is_new


VERBS: list[LetterCommand] = [replay(), resolve(), discard()]


@pytest.mark.parametrize("command", VERBS, ids=lambda command: command.verb)
async def test_the_database_accepts_exactly_what_is_not_refused(
    pool: Pool, tenant: str, owner: Owner, command: LetterCommand
) -> None:
    """The database decides in the statement that writes, and the refusal is worded elsewhere: both say the same."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    cases = product(LetterStatus, (1, 2), (None, "first"), (0, MAX_REPLAYS - 1, MAX_REPLAYS))
    for number, (status, cycle, blocked_by, replays) in enumerate(cases):
        await owner.execute(
            "UPDATE dead_letters SET status = $2, cycle = $3, blocked_by = $4, replay_count = $5 WHERE id = $1",
            *(letter.workflow_id, status.value, cycle, blocked_by, replays),
        )
        asked = given(letter, command.model_copy(update={"request_id": f"r{number}"}), number=number + 1)
        known = LetterState(letter=letter, status=status, cycle=cycle, replays=replays, blocked_by=blocked_by)
        if (status, cycle) != (LetterStatus.PENDING, 1):
            with pytest.raises(dead_letters.RecordBehind):
                await dead_letters.take_command(pool, asked, asked.command, yes(asked.command))
            continue
        taken = await dead_letters.take_command(pool, asked, asked.command, yes(asked.command))
        problem = refusal(known, asked.command)
        assert (taken.obey, taken.answer.accepted) == (problem is None, problem is None)
        assert taken.answer.message == (problem or yes(asked.command).message)


async def test_an_outcome_and_the_end_of_the_run_are_written_together(pool: Pool, tenant: str, owner: Owner) -> None:
    """Both, or neither: the row of a run that the database does not take leaves the record open."""
    letter = new_letter(tenant)
    await dead_letters.record_exhausted(pool, exhausted(letter))
    await dead_letters.put_accepted(pool, letter, replay(), yes(replay()))
    run = runs.FinishedRun(
        run_id=letter.run_id,
        tenant=tenant,
        pipeline="orders",
        status=RunStatus.SUCCESS,
        correlation_id=None,
        idempotency_key=None,
        started_at=START,
        revision=9 * CYCLE,
        labels={"mission": "42"},
    )
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await dead_letters.put_outcome(pool, letter, outcome(Ending.SUCCEEDED), run=replace(run, tenant="*"))
    assert (await _record(pool, letter)).status is LetterStatus.REPLAYING
    assert await dead_letters.put_outcome(pool, letter, outcome(Ending.SUCCEEDED), run=run) is LetterStatus.REPLAYED
    assert await _run_status(owner, letter) == RunStatus.SUCCESS
    assert (await _record(pool, letter)).labels == {"mission": "42"}
