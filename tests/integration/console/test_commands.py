"""Orders to dead letters over HTTP, on a real stack with a real worker."""

import json
from typing import Any

import httpx
from fastapi import FastAPI

from redrive.access import Right, Role
from redrive.contracts import RunStatus
from redrive.dead_letters import LetterStatus, Verb
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.dead_letters.lab import Case

DLQ = "/api/v1/workflow-dlq"


async def test_replay_runs_the_same_run_to_its_end(admin: httpx.AsyncClient, case: Case) -> None:
    """An admin reads the record, replays it, and the run succeeds; the audit log names the token and the reason."""
    await case.park("second")
    address = f"{DLQ}/{case.letter('second').workflow_id}"
    seen = await admin.get(address)
    assert seen.json()["status"] == "pending"
    assert seen.json()["payload"]["n"] == 1
    case.mend()
    command = {"reason": "the service is back", "request_id": "one"}
    answer = await admin.post(f"{address}/replay", json=command, headers={"If-Match": seen.headers["ETag"]})
    assert (answer.status_code, answer.json()["request_id"]) == (202, "one")
    await case.until(RunStatus.SUCCESS)
    again = await admin.post(f"{address}/replay", json=command, headers={"If-Match": seen.headers["ETag"]})
    assert (again.status_code, again.json()) == (202, answer.json())
    requested = await case.audited("one", action="replay_requested")
    assert requested["reason"] == "the service is back"
    assert requested["actor"].startswith("test admin (tok_")


async def test_a_command_to_a_record_that_changed_is_refused(admin: httpx.AsyncClient, case: Case) -> None:
    """`If-Match` with an old version gives 412 and the version of now; nothing is ordered."""
    await case.park("second")
    address = f"{DLQ}/{case.letter('second').workflow_id}"
    answer = await admin.post(f"{address}/ignore", json={"reason": "old"}, headers={"If-Match": '"99"'})
    assert answer.status_code == 412
    assert answer.json()["code"] == "version_changed"
    record = await case.record("second")
    assert record
    assert answer.headers["ETag"] == f'"{record["version"]}"'
    assert record["status"] == "pending"


async def test_plan_tells_what_a_replay_would_do(admin: httpx.AsyncClient, case: Case) -> None:
    """A plan names the steps that are reused and run again and the fields that change, and changes nothing."""
    await case.park("second")
    address = f"{DLQ}/{case.letter('second').workflow_id}"
    plan = (await admin.post(f"{address}/plan", json={"input_patch": {"place": {"city": "Ulm"}}})).json()
    assert (plan["reused"], plan["run_again"], plan["edited"]) == (["first"], ["second", "third"], ["place.city"])
    assert plan["refusal"] is None
    closed = await admin.post(f"{address}/plan", json={"from_step": "third"})
    assert (closed.status_code, closed.json()["code"]) == (400, "invalid_input")


async def test_an_edit_is_held_against_the_step_that_the_replay_begins_with(
    admin: httpx.AsyncClient, case: Case
) -> None:
    """The page shows the dead step's input; what the first step that runs again does not read is named."""
    await case.park("third")
    letter = case.letter("third").workflow_id
    shown = (await admin.get(f"{DLQ}/{letter}")).json()["payload"]

    async def said(edited: dict[str, Any], **draft: str) -> str:
        return (await admin.post(f"/dead-letters/{letter}/plan", data={"input": json.dumps(edited)} | draft)).text

    of_third = shown | {"second": {"step": "second", "n": 7}}
    assert "Fits." in await said(of_third)
    assert "Fits." in await said(of_third, mode="STEP_ONLY", from_step="first")
    earlier = await said(of_third, mode="FROM_STEP", from_step="first")
    assert ("Fits." in earlier, "second: the input has no such field" in earlier) == (False, True)
    assert "Fits." in await said(shown | {"n": 8}, from_step="first")
    assert "n: Input should be a valid integer" in await said(shown | {"n": "many"}, from_step="first")


async def test_resolve_and_ignore_close_a_letter(admin: httpx.AsyncClient, case: Case) -> None:
    """`resolve` lets the run go on with an output; `ignore` ends the next one, and a closed letter refuses with 409."""
    await case.park("second", "third")
    resolved = await admin.post(
        f"{DLQ}/{case.letter('second').workflow_id}/resolve",
        json={"reason": "done by hand", "output": {"step": "second", "n": 7}},
    )
    assert resolved.status_code == 202
    await case.until_letter("third", LetterStatus.PENDING)
    third = f"{DLQ}/{case.letter('third').workflow_id}"
    assert (await admin.post(f"{third}/ignore", json={"reason": "not needed"})).status_code == 202
    await case.until(RunStatus.FAILED)
    again = await admin.post(f"{third}/discard", json={"reason": "again"})
    assert (again.status_code, again.json()["code"]) == (409, "command_refused")


async def test_a_step_only_replay_waits_for_continue(admin: httpx.AsyncClient, case: Case) -> None:
    """STEP_ONLY leaves the run PARTIAL; `continue` over HTTP lets it go on; a run that has ended is not canceled."""
    await case.park("second")
    case.mend()
    command = {"reason": "look first", "mode": "STEP_ONLY"}
    await admin.post(f"{DLQ}/{case.letter('second').workflow_id}/replay", json=command)
    await case.until(RunStatus.PARTIAL)
    run = f"/api/v1/runs/{case.run_id}"
    assert (await admin.get(run)).json()["status"] == "PARTIAL"
    assert (await admin.post(f"{run}/continue", json={"reason": "looks well"})).status_code == 202
    await case.until(RunStatus.SUCCESS)
    late = await admin.post(f"{run}/cancel", json={"reason": "late"})
    assert (late.status_code, late.json()["code"]) == (409, "run_ended")


async def test_payloads_are_a_right_of_their_own(app: FastAPI, make_token: MakeToken, case: Case) -> None:
    """A viewer reads the record without its payload; one with the right `payloads` reads that, too."""
    await case.park("second")
    address = f"{DLQ}/{case.letter('second').workflow_id}"
    async with client_of(app, await make_token(Role.VIEWER)) as viewer:
        record = (await viewer.get(address)).json()
    assert (record["payload"], record["payload_hidden"]) == (None, True)
    rights = frozenset({Right.READ, Right.PAYLOADS})
    async with client_of(app, await make_token(Role.VIEWER, rights=rights)) as trusted:
        assert (await trusted.get(address)).json()["payload"]["n"] == 1


async def test_a_closed_dead_letter_shows_what_was_done(admin: httpx.AsyncClient, case: Case) -> None:
    """Who closed it, how and why, and no advice to replay what is closed."""
    await case.park("second")
    letter = f"/dead-letters/{case.letter('second').workflow_id}"
    advice = "Edit it, then replay"
    assert advice in (await admin.get(letter)).text
    answer = await case.command(Verb.RESOLVE, output={"step": "second", "n": 7}, reason="counted by hand")
    assert answer.accepted
    await case.until(RunStatus.SUCCESS)
    page = (await admin.get(letter)).text
    assert "What was done" in page
    assert "The run went on with the output that was given." in page
    assert "counted by hand" in page
    assert advice not in page
    assert (await admin.get(f"/api/v1/runs/{case.run_id}/steps/second")).json()["output"]["n"] == 7
