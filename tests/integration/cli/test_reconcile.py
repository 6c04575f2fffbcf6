"""`redrive reconcile`: each store is damaged in turn, and the damage found, reported and mended."""

import asyncio
from typing import Any

from redrive.dead_letters import LetterId
from tests.conftest import eventually
from tests.integration.cli.command import Said
from tests.integration.cli.desk import WHY, Desk


async def _reconcile(desk: Desk, *words: str) -> Said:
    return await desk.command("reconcile", "--tenant", desk.tenant, *words)


async def _listed(desk: Desk, count: int) -> Any:
    """Wait until Temporal's list shows so many parked runs."""

    async def shown() -> bool:
        query = f"RedriveTenant = '{desk.tenant}' AND RedriveStatus = 'DLQ_PENDING' AND ExecutionStatus = 'Running'"
        return len([run async for run in desk.temporal.list_workflows(query)]) == count

    return await eventually(shown)


async def test_stores_that_agree(desk: Desk) -> None:
    """Nothing is wrong: exit code 0."""
    await desk.park()
    await _listed(desk, 1)
    said = await _reconcile(desk)
    assert (said.code, said.err) == (0, "")
    assert said.out == "1 parked runs, 1 open records\nthey agree\n"


async def test_parked_run_without_a_record_gets_one(desk: Desk) -> None:
    """The lost row is reported, then written anew from the run itself, redacted, and can be replayed."""
    letter, kept = await asyncio.gather(desk.park(password="hunter2"), desk.park())
    lost = await desk.record(letter)
    await desk.sql("DELETE FROM redrive.dead_letters WHERE id = $1", letter.workflow_id)
    await _listed(desk, 2)
    said = await _reconcile(desk, "--json")
    assert said.code == 1
    assert said.sentence.endswith("[stores_disagree]")
    assert [(problem["kind"], problem["run_id"]) for problem in said.document["problems"]] == [
        ("no_record", letter.run_id)
    ]
    assert await desk.record(letter) is None
    mended = await _reconcile(desk, "--repair", "--json")
    assert (mended.code, mended.err) == (0, "")
    assert mended.document["problems"][0]["mended"] is True
    record = await desk.record(letter)
    assert record
    assert lost
    same = ("status", "cycle", "message", "attempts", "payload", "config", "fingerprint", "correlation_id", "pipeline")
    assert {name: record[name] for name in same} == {name: lost[name] for name in same}
    assert (await _reconcile(desk)).code == 0
    desk.mend()
    assert (await desk.dlq("replay", letter, *WHY, "--yes", "--wait")).code == 0
    assert (await desk.record(kept) or {})["version"] == 1


async def test_record_whose_run_is_gone_is_marked(desk: Desk) -> None:
    """A terminated run's record is reported, then marked as orphaned and audited; the next check finds nothing."""
    letter = await desk.park()
    await desk.run(letter).terminate()
    await _listed(desk, 0)
    said = await _reconcile(desk)
    assert said.code == 1
    assert "--repair" in said.sentence
    assert letter.run_id in said.out
    assert (await desk.record(letter) or {})["orphaned"] is False
    mended = await _reconcile(desk, "--repair")
    assert (mended.code, mended.err) == (0, "")
    record = await desk.record(letter) or {}
    assert (record["status"], record["orphaned"]) == ("pending", True)
    assert (await desk.audit())[-1] == ("orphaned", "redrive")
    again = (await _reconcile(desk, "--json")).document
    assert again == {"parked_runs": 0, "open_records": 1, "problems": []}
    assert "run is gone" in (await desk.command("dlq", "list", "--tenant", desk.tenant)).out


async def _lose_order(desk: Desk, letter: LetterId, status: str) -> None:
    """Leave what a letter leaves that dies after it has accepted an order and before it has handed it on."""
    await desk.temporal.get_workflow_handle(letter.workflow_id).terminate()
    await desk.sql(
        "UPDATE redrive.dead_letters SET status = $2, order_request_id = 'lost' WHERE id = $1",
        letter.workflow_id,
        status,
    )


async def test_order_that_never_reached_the_run_is_given_up(desk: Desk) -> None:
    """The records wait for orders again, and one more goes through. What is stored is redacted by the worker."""
    letters = await asyncio.gather(desk.park(password="hunter2"), desk.park(password="hunter2"))
    for letter, status in zip(letters, ("replaying", "resolved"), strict=True):
        await _lose_order(desk, letter, status)
    await _listed(desk, 2)
    said = await _reconcile(desk, "--json")
    assert said.code == 1
    assert {problem["kind"] for problem in said.document["problems"]} == {"order_lost"}
    assert {(await desk.record(letter) or {})["status"] for letter in letters} == {"replaying", "resolved"}
    mended = await _reconcile(desk, "--repair", "--json")
    assert (mended.code, mended.err) == (0, "")
    assert [problem["mended"] for problem in mended.document["problems"]] == [True, True]
    for letter in letters:
        record = await desk.record(letter) or {}
        assert (record["status"], record["cycle"], record["order_request_id"]) == ("pending", 1, None)
        assert "hunter2" not in record["payload"]
    assert (await desk.audit())[-2:] == [("reopened", "redrive")] * 2
    desk.mend()
    assert (await desk.dlq("replay", letters[0], *WHY, "--yes", "--wait")).code == 0
    assert desk.calls.count("pay") == 3


async def test_outcome_that_never_reached_the_record_is_written(desk: Desk) -> None:
    """A run that went on to its end while its letter was dead: the record is closed, not offered for a restart."""
    letter = await desk.park()
    desk.mend()
    assert (await desk.dlq("replay", letter, *WHY, "--yes", "--wait")).code == 0
    await desk.until(letter, "replayed")
    await desk.sql("UPDATE redrive.dead_letters SET status = 'replaying' WHERE id = $1", letter.workflow_id)
    said = await _reconcile(desk, "--repair", "--json")
    assert (said.code, said.err) == (0, "")
    assert [problem["kind"] for problem in said.document["problems"]] == ["outcome_lost"]
    record = await desk.record(letter) or {}
    assert (record["status"], record["orphaned"]) == ("replayed", False)
    assert (await desk.audit())[-1] == ("replay_outcome", "redrive")
