"""`redrive reconcile`: each store is damaged in turn, and the damage found, reported and mended."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from temporalio.client import ScheduleHandle
from temporalio.testing import ActivityEnvironment

from redrive.activities.alerts import AlertActivities
from redrive.activities.maintenance import KeyActivities
from redrive.dead_letters import LetterId
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.settings import AlertSettings
from tests.conftest import eventually
from tests.integration.cli.command import Said
from tests.integration.cli.operator import WHY, Operator
from tests.integration.dead_letters.sink import Sink


@pytest.fixture(autouse=True)
async def sweep(operator: Operator) -> ScheduleHandle:
    """The workers' own check, paused: what is found here is damaged here, and found by the command."""
    handle = operator.temporal.get_schedule_handle(f"redrive-expire-keys-{operator.task_queue}")
    await handle.pause()

    async def has_ended() -> bool:
        return not (await handle.describe()).info.running_actions

    await eventually(has_ended)
    return handle


async def _reconcile(operator: Operator, *words: str) -> Said:
    return await operator.command("reconcile", "--tenant", operator.tenant, *words)


async def _listed(operator: Operator, count: int) -> Any:
    """Wait until Temporal's list shows so many parked runs."""

    async def shown() -> bool:
        query = f"RedriveTenant = '{operator.tenant}' AND RedriveStatus = 'DLQ_PENDING' AND ExecutionStatus = 'Running'"
        return len([run async for run in operator.temporal.list_workflows(query)]) == count

    return await eventually(shown)


async def test_stores_that_agree(operator: Operator) -> None:
    """Nothing is wrong: exit code 0."""
    await operator.park()
    await _listed(operator, 1)
    said = await _reconcile(operator)
    assert (said.code, said.err) == (0, "")
    assert said.out == "1 parked runs, 1 open records\nthey agree\n"


async def test_parked_run_without_a_record_gets_one(operator: Operator) -> None:
    """The lost row is reported, then written anew from the run itself, redacted, and can be replayed."""
    letter, kept = await asyncio.gather(operator.park(password="hunter2"), operator.park())
    lost = await operator.record(letter)
    await operator.sql("DELETE FROM redrive.dead_letters WHERE id = $1", letter.workflow_id)
    await _listed(operator, 2)
    said = await _reconcile(operator, "--json")
    assert said.code == 1
    assert said.sentence.endswith("[stores_disagree]")
    assert [(problem["kind"], problem["run_id"]) for problem in said.document["problems"]] == [
        ("no_record", letter.run_id)
    ]
    assert await operator.record(letter) is None
    mended = await _reconcile(operator, "--repair", "--json")
    assert (mended.code, mended.err) == (0, "")
    assert mended.document["problems"][0]["repaired"] is True
    record = await operator.record(letter)
    assert record
    assert lost
    same = ("status", "cycle", "message", "attempts", "payload", "config", "fingerprint", "correlation_id", "pipeline")
    assert {name: record[name] for name in same} == {name: lost[name] for name in same}
    assert (await _reconcile(operator)).code == 0
    operator.mend()
    assert (await operator.dlq("replay", letter, *WHY, "--yes", "--wait")).code == 0
    assert (await operator.record(kept) or {})["version"] == 1


async def test_record_whose_run_is_gone_is_marked(operator: Operator) -> None:
    """A terminated run's record is reported, then marked as orphaned and audited; the next check finds nothing."""
    letter = await operator.park()
    await operator.run(letter).terminate()
    await _listed(operator, 0)
    said = await _reconcile(operator)
    assert said.code == 1
    assert "--repair" in said.sentence
    assert letter.run_id in said.out
    assert (await operator.record(letter) or {})["orphaned"] is False
    mended = await _reconcile(operator, "--repair")
    assert (mended.code, mended.err) == (0, "")
    record = await operator.record(letter) or {}
    assert (record["status"], record["orphaned"]) == ("pending", True)
    assert (await operator.audit())[-1] == ("orphaned", "redrive")
    again = (await _reconcile(operator, "--json")).document
    assert again == {"parked_runs": 0, "open_records": 1, "problems": []}
    assert "run is gone" in (await operator.command("dlq", "list", "--tenant", operator.tenant)).out


async def _lose_command(operator: Operator, letter: LetterId, status: str) -> None:
    """Leave a record whose command was written and never reached the run."""
    await operator.sql(
        "UPDATE redrive.dead_letters SET status = $2, command_request_id = 'lost' WHERE id = $1",
        letter.workflow_id,
        status,
    )


async def test_command_that_never_reached_the_run_is_given_up(operator: Operator) -> None:
    """The records wait for orders again, and one more goes through. What is stored is redacted by the worker."""
    letters = await asyncio.gather(operator.park(password="hunter2"), operator.park(password="hunter2"))
    for letter, status in zip(letters, ("replaying", "resolved"), strict=True):
        await _lose_command(operator, letter, status)
    await _listed(operator, 2)
    said = await _reconcile(operator, "--json")
    assert said.code == 1
    assert {problem["kind"] for problem in said.document["problems"]} == {"command_lost"}
    assert {(await operator.record(letter) or {})["status"] for letter in letters} == {"replaying", "resolved"}
    mended = await _reconcile(operator, "--repair", "--json")
    assert (mended.code, mended.err) == (0, "")
    assert [problem["repaired"] for problem in mended.document["problems"]] == [True, True]
    for letter in letters:
        record = await operator.record(letter) or {}
        assert (record["status"], record["cycle"], record["command_request_id"]) == ("pending", 1, None)
        assert "hunter2" not in record["payload"]
    assert (await operator.audit())[-2:] == [("reopened", "redrive")] * 2
    operator.mend()
    assert (await operator.dlq("replay", letters[0], *WHY, "--yes", "--wait")).code == 0
    assert operator.calls.count("pay") == 3


async def test_outcome_that_never_reached_the_record_is_written(operator: Operator) -> None:
    """A run that went on to its end while its letter was dead: the record is closed, not offered for a restart."""
    letter = await operator.park()
    operator.mend()
    assert (await operator.dlq("replay", letter, *WHY, "--yes", "--wait")).code == 0
    await operator.until(letter, "replayed")
    await _listed(operator, 0)
    await operator.sql("UPDATE redrive.dead_letters SET status = 'replaying' WHERE id = $1", letter.workflow_id)
    said = await _reconcile(operator, "--repair", "--json")
    assert (said.code, said.err) == (0, "")
    assert [problem["kind"] for problem in said.document["problems"]] == ["outcome_lost"]
    record = await operator.record(letter) or {}
    assert (record["status"], record["orphaned"]) == ("replayed", False)
    assert (await operator.audit())[-1] == ("replay_outcome", "redrive")


async def test_the_workers_repair_by_themselves(operator: Operator, sweep: ScheduleHandle) -> None:
    """A command that was recorded and never carried out is undone without anybody calling for it."""
    letter = await operator.park()
    await _lose_command(operator, letter, "discarded")
    await _listed(operator, 1)

    async def is_pending() -> bool:
        return bool((await operator.record(letter) or {})["status"] == "pending")

    await sweep.trigger()
    await eventually(is_pending, within=60)
    operator.mend()
    assert (await operator.dlq("replay", letter, *WHY, "--yes", "--wait")).code == 0


async def _lose_bulk(operator: Operator) -> str:
    """Start a bulk operation of two dead letters, and lose its workflow after the first, as with Temporal itself."""
    await operator.park()
    await operator.park()
    slow = ("--tenant", operator.tenant, "--rate", "0.01", *WHY, "--yes", "--detach", "--json")
    bulk = str((await operator.command("bulk", "replay", *slow)).document["id"])

    async def first_has_ended() -> bool:
        return (await operator.redrive.bulk.get(bulk, tenant=operator.tenant)).progress.failed == 1

    await eventually(first_has_ended)
    await operator.temporal.get_workflow_handle(bulk).terminate("lost")
    return bulk


async def test_bulk_operation_whose_workflow_is_gone_is_ended_by_a_person(operator: Operator) -> None:
    """Every command says what is true; `--repair` ends the operation, and its items say what became of them."""
    bulk = await _lose_bulk(operator)
    shown = await operator.command("bulk", "show", bulk)
    assert "RUNNING" in shown.out
    assert "its workflow is gone: nothing more is sent" in shown.err
    stopped = await operator.command("bulk", "stop", bulk, *WHY)
    assert "its workflow is gone; if its record is open, `redrive reconcile --repair` ends it" in stopped.sentence
    found = await _reconcile(operator, "--json")
    assert [(each["kind"], each["run_id"]) for each in found.document["problems"]] == [("bulk_gone", bulk)]
    mended = await _reconcile(operator, "--repair", "--json")
    assert (mended.code, mended.document["problems"][0]["repaired"]) == (0, True)
    shown = await operator.command("bulk", "show", bulk)
    assert "STOPPED" in shown.out
    assert shown.err == ""
    items = (await operator.command("bulk", "items", bulk, "--json")).document["items"]
    assert sorted(item["status"] for item in items) == ["FAILED", "SKIPPED"]
    assert (await operator.audit())[-1] == ("bulk_finished", "redrive")
    assert (await _reconcile(operator)).code == 0


async def test_the_workers_alert_on_what_only_a_person_can_decide(operator: Operator) -> None:
    """Started again, the operation would continue. One alert in an hour; one that cannot be sent is sent later."""
    bulk = await _lose_bulk(operator)
    async with (
        Sink(status=500) as sink,
        httpx.AsyncClient() as http,
        Database(operator.command.variables["DATABASE_URL"], max_size=2) as database,
    ):
        alerts = AlertActivities(http, AlertSettings(webhook_url=sink.url))
        sweep = KeyActivities(operator.temporal, database, Redactor(), alerts)

        async def told() -> list[Any]:
            await ActivityEnvironment().run(sweep.expire_keys)
            said = [json.loads(request.body) for request in sink.received]
            sink.received.clear()
            return [alert for alert in said if alert["letter"]["run_id"] == bulk]

        (not_taken,) = await told()
        sink.status = 204
        assert await told() == [not_taken]
        assert await told() == []
    assert (not_taken["category"], not_taken["error_type"]) == ("stores_disagree", "bulk_gone")
    assert not_taken["message"] == "the bulk operation is RUNNING, its workflow has ended or is gone"
    assert (await operator.redrive.bulk.get(bulk, tenant=operator.tenant)).progress.pending == 1
