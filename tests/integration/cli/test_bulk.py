"""`redrive bulk …`: one order for many dead letters, with real processes."""

from pathlib import Path

from tests.conftest import WorkerFactory, eventually
from tests.integration.cli.command import CommandLine
from tests.integration.cli.operator import WHY, Operator


async def test_plan_replay_show_and_items(operator: Operator) -> None:
    """The plan changes nothing; then each line tells how far it is, until every letter is replayed."""
    letters = [await operator.park(), await operator.park()]
    of = ("--tenant", operator.tenant)
    plan = (await operator.command("bulk", "plan", *of, "--json")).document
    assert (plan["count"], plan["groups"][0]["run_again"]) == (2, [{"name": "pay", "effect": "keyed"}])
    operator.mend()
    said = await operator.command("bulk", "replay", *of, *WHY, "--yes", "--canary", "1")
    assert said.code == 0, said.err
    first, *lines = said.out.splitlines()
    bulk = first.split()[0]
    assert lines[-1] == "DONE  2 in all: 0 pending, 0 under way, 2 applied, 0 skipped, 0 failed"
    for letter in letters:
        await operator.until(letter, "replayed")
    shown = await operator.command("bulk", "show", bulk)
    assert "a test" in shown.out
    items = (await operator.command("bulk", "items", bulk, "--json", "--status", "applied")).document["items"]
    assert {item["letter_id"] for item in items} == {letter.workflow_id for letter in letters}
    assert [view["id"] for view in (await operator.command("bulk", "list", *of, "--json")).document] == [bulk]


async def test_a_stale_plan_and_an_empty_one_are_refused(operator: Operator) -> None:
    """With the code that scripts look for."""
    letter = await operator.park()
    of = ("--letter", letter.workflow_id, "--tenant", operator.tenant)
    stale = await operator.command("bulk", "discard", *of, *WHY, "--yes", "--plan", "0123456789abcdef")
    assert stale.sentence.endswith("[PLAN_CHANGED]")
    done = await operator.command("bulk", "discard", *of, *WHY, "--yes", "--json")
    assert (done.code, done.document["progress"]["applied"]) == (0, 1)
    again = await operator.command("bulk", "discard", *of, *WHY, "--yes")
    assert "no open dead letter fits" in again.sentence


async def test_what_is_stopped_is_told_by_the_exit_code(operator: Operator) -> None:
    """One was exhausted again, the other skipped: 1, with the counts; who paused and stopped it is in the audit log."""
    await operator.park()
    await operator.park()
    slow = ("--tenant", operator.tenant, "--rate", "0.01", *WHY, "--yes", "--detach", "--json")
    bulk = (await operator.command("bulk", "replay", *slow)).document["id"]

    async def first_has_ended() -> bool:
        return (await operator.redrive.bulk.get(bulk, tenant=operator.tenant)).progress.failed == 1

    await eventually(first_has_ended)
    for verb in ("pause", "stop"):
        told = await operator.command("bulk", verb, bulk, *WHY)
        assert told.code == 0, told.err
    watched = await operator.command("bulk", "watch", bulk)
    assert watched.code == 1
    assert watched.sentence.startswith("stopped: a test; 0 of 2 applied, 1 skipped, 1 failed")
    actions = [action for action, who in await operator.audit() if action.startswith("bulk") and who == "ada"]
    assert actions == ["bulk_started", "bulk_paused", "bulk_stopped"]


async def test_one_account_is_one_pair_of_eyes(operator: Operator, worker: WorkerFactory, tmp_path: Path) -> None:
    """Where approvals are on, the name after --by makes nobody another person; somebody else's yes lets it start."""
    letter = await operator.park()
    async with worker(approvals=True) as careful:
        queue = {"REDRIVE_TASK_QUEUE": careful.settings.task_queue}
        command = CommandLine(tmp_path, **operator.command.variables | queue)
        order = ("bulk", "discard", "--letter", letter.workflow_id, "--tenant", operator.tenant, *WHY, "--yes")
        plan = (await command(*order, "--dry-run", "--json")).document
        until = ("--until", plan["command"]["selection"]["until"])
        refused = await command(*order, *until)
        assert refused.sentence.endswith("[APPROVAL_NEEDED]")
        assert plan["hash"] in refused.sentence
        why = ("--tenant", operator.tenant, "--reason", "looked at it", "--by", "zoe")
        # No worker is needed for it: the command line has the database.
        own = await command("bulk", "approve", plan["hash"], *why, REDRIVE_TASK_QUEUE="nobody-listens")
        assert own.sentence.endswith("[same_approver]")
        yes = {
            "tenant": operator.tenant,
            "approved_by": "bob",
            "reason": "looked at it",
            "person": "account:somebody else",
        }
        await careful.redrive.bulk.approve(plan["hash"], **yes)
        started = await command(*order, *until)
        assert started.code == 0, started.err
    await operator.until(letter, "discarded")
