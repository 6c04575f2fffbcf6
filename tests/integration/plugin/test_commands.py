"""Commands to dead letters of foreign workflows."""

import uuid
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from redrive.dead_letters import LetterStatus
from redrive.postgres.database import Database
from redrive.settings import Settings
from redrive.store.dead_letters.lists import audit_trail
from redrive.store.dead_letters.models import AuditEntry
from tests.conftest import eventually
from tests.integration.plugin import project
from tests.integration.plugin.lab import Project, id_of


async def test_a_replay_lets_the_workflow_go_on_where_it_waits(users: Project) -> None:
    """The record tells of the activity; after the replay the workflow ends as if nothing had happened."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    assert (letter["module"], letter["pipeline"], letter["error_type"]) == ("charge", "OrderWorkflow", "RuntimeError")
    assert letter["message"] == "charge is broken, password=[redacted]"
    assert letter["payload"] == {"case": users.case, "id": "o-1", "amount": 1, "items": []}
    assert letter["config"]["kind"] == "activity"

    users.broken()
    answer = await users.command(letter, "replay")
    assert (answer.accepted, answer.message) == (True, "the workflow goes on")
    assert await handle.result() == "1: shipped o-1 in 3"
    await users.closed(handle, LetterStatus.REPLAYED)
    await users.replays(handle)


async def test_a_replay_that_fails_opens_the_next_cycle_with_the_same_activity_id(users: Project) -> None:
    """The same dead letter waits again; keys made of the activity's id hold."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    assert (await users.command(letter, "replay")).accepted
    [again] = await users.parked(handle, cycle=2)
    assert (again["id"], len(again["failure_history"])) == (letter["id"], 2)
    users.broken()
    assert (await users.command(again, "replay", policy={"max_attempts": 3})).accepted
    await handle.result()
    assert len({activity_id for name, _, activity_id in users.outside.calls if name == "charge"}) == 1


async def test_edited_arguments_are_checked_against_the_activitys_types(users: Project) -> None:
    """An edit that does not fit is refused with the reason; one that fits runs under another activity id."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    users.broken()
    refused = await users.command(letter, "replay", input_patch={"amount": "many"})
    assert not refused.accepted
    assert "the edited arguments do not fit 'charge'" in refused.message
    wrong = await users.command(letter, "replay", policy={"jitter": 1})
    assert "policy: jitter" in wrong.message
    assert (await users.command(letter, "replay", input_patch={"amount": 7})).accepted
    assert await handle.result() == "7: shipped o-1 in 3"
    first, second = [activity_id for name, _, activity_id in users.outside.calls if name == "charge"]
    assert second == f"{first}~1"
    await users.replays(handle)


async def test_several_arguments_are_edited_by_their_positions(users: Project) -> None:
    """The record shows them by position, and the edit of one leaves the others."""
    users.broken("ship")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    assert letter["payload"] == {"0": users.case, "1": "o-1", "2": 3}
    users.broken()
    refused = await users.command(letter, "replay", input_patch={"3": 1})
    assert "there are 3 arguments" in refused.message
    assert (await users.command(letter, "replay", input_patch={"2": 9})).accepted
    assert await handle.result() == "1: shipped o-1 in 9"


async def test_a_result_is_decoded_before_it_is_accepted(users: Project) -> None:
    """One that does not fit is refused; one that fits is what the activity returned."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    refused = await users.command(letter, "resolve", output={"id": "x", "amount": "none"})
    assert "does not fit what 'charge' returns" in refused.message
    assert (await users.command(letter, "resolve", output={"id": "x", "amount": 5})).accepted
    assert await handle.result() == "5: shipped o-1 in 3"
    await users.closed(handle, LetterStatus.RESOLVED)


async def test_a_discard_raises_the_original_error(users: Project) -> None:
    """The workflow's own code catches it: its compensation runs."""
    users.broken("ship")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    answer = await users.command(letter, "discard")
    assert (answer.accepted, answer.message) == (True, "the error is raised in the workflow")
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert "ship is broken" in str(failed.value.cause.__cause__)
    assert len(users.outside.called("refund")) == 1
    await users.closed(handle, LetterStatus.DISCARDED)


async def test_a_command_twice_acts_once(users: Project) -> None:
    """The same request id gets the same answer; another command after the end is refused."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    users.broken()
    same = uuid.uuid4().hex
    first = await users.command(letter, "replay", request_id=same)
    second = await users.command(letter, "replay", request_id=same)
    assert first == second
    assert first.accepted
    await handle.result()
    await users.closed(handle, LetterStatus.REPLAYED)
    late = await users.command(letter, "discard")
    assert (late.accepted, late.message) == (False, "the dead letter is replayed: there is nothing left to discard")
    assert len(users.outside.called("charge")) == 2


async def test_pipelines_options_are_refused_with_a_reason(users: Project) -> None:
    """A workflow's own code decides what comes next."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    refused = await users.command(letter, "replay", mode="STEP_ONLY")
    assert "are for pipelines" in refused.message
    assert "replay it instead" in (await users.command(letter, "restart")).message
    assert (await users.command(letter, "discard")).accepted


@pytest.mark.parametrize("workflow", [project.LocalWorkflow, project.ParentWorkflow])
@pytest.mark.parametrize("verb", ["replay", "resolve", "discard"])
async def test_local_activities_and_children_take_all_commands(users: Project, workflow: type, verb: str) -> None:
    """They park and go on as activities do."""
    users.broken("charge")
    handle = await users.start(workflow.run, users.order(5))  # type: ignore[attr-defined]
    [letter] = await users.parked(handle)
    users.broken()
    is_local = workflow is project.LocalWorkflow
    result = {"id": "x", "amount": 6} if is_local else 6
    edit = {"amount": 6}
    given: dict[str, dict[str, Any]] = {
        "replay": {"input_patch": edit},
        "resolve": {"output": result},
        "discard": {},
    }
    answer = await users.command(letter, verb, **given[verb])
    assert answer.accepted, answer
    if verb == "discard":
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    else:
        assert await handle.result() == 6
    assert letter["config"]["kind"] == ("local_activity" if is_local else "child")
    await users.replays(handle)


async def test_a_workflow_that_ended_takes_only_a_discard(users: Project) -> None:
    """Terminated while parked: a replay is refused and the dead letter marked, a discard closes it."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    await handle.terminate()
    refused = await users.command(letter, "replay")
    assert "the workflow has ended" in refused.message
    assert (await users.command(letter, "discard")).accepted
    await users.closed(handle, LetterStatus.DISCARDED)


async def test_a_command_signalled_to_the_workflow_itself_is_recorded(users: Project) -> None:
    """`temporal workflow signal` to the parked workflow acts, and stands in the audit log."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    users.broken()
    await handle.signal("redrive.command", "no command")
    await handle.signal("redrive.command", args=[1, 2])
    given = {"verb": "replay", "request_id": "by-hand", "requested_by": "ada", "reason": "fixed"}
    await handle.signal("redrive.command", given)
    assert await handle.result() == "1: shipped o-1 in 3"
    await users.closed(handle, LetterStatus.REPLAYED)
    [record] = await users.letters(handle)
    assert (record["replayed_by"], id_of(letter)) == ("ada", id_of(record))


async def test_a_command_that_cannot_be_read_is_refused_in_the_audit_log(users: Project, settings: Settings) -> None:
    """Whoever signals by hand, and forgets a field, finds out why nothing happened; an activity's name is a step."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    users.broken()
    await handle.signal("redrive.command", {"verb": "replay", "reason": "fixed", "input_patch": "hunter22"})
    assert settings.database_url
    async with Database(settings.database_url.get_secret_value()) as database:
        pool = await database.pool()

        async def refused() -> list[AuditEntry]:
            trail = await audit_trail(pool, letter["tenant"], letter["id"])
            return [line for line in trail if line.action == "refused"]

        [line] = await eventually(refused)
    assert line.after
    assert line.after["answer"]["message"].startswith("the command cannot be read: replay.request_id: Field required")
    assert "hunter22" not in str(line)
    given = {"verb": "replay", "request_id": "by-hand", "requested_by": "ada", "reason": "fixed", "step": "charge"}
    await handle.signal("redrive.command", given)
    assert await handle.result() == "1: shipped o-1 in 3"
    await users.replays(handle)


async def test_a_reset_does_it_all_again_in_a_new_run(users: Project) -> None:
    """The old run ends as terminated, its dead letter is closed, and the new run ends well."""
    users.broken("ship")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    [letter] = await users.parked(handle)
    users.broken()
    answer = await users.redrive.dead_letters.reset(
        id_of(letter), letter["config"]["event_id"], requested_by="ada", reason="new code"
    )
    assert answer.accepted
    assert answer.message.startswith("reset to event")
    assert await users.client.get_workflow_handle(handle.id).result() == "1: shipped o-1 in 3"
    await users.closed(handle, LetterStatus.DISCARDED)
    assert len(users.outside.called("charge")) == 1
