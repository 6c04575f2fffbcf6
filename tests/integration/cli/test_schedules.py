"""`redrive schedule …` against a real server, a real worker process and the audit log."""

import uuid

from tests.conftest import eventually
from tests.integration.cli.command import CommandLine

ADA = '{"name": "Ada"}'
LABEL = ("--label", "mission_id=42")
DAILY = ("--cron", "0 5 * * *", "--time-zone", "Europe/Vienna")


def new_tenant() -> str:
    """A tenant of its own."""
    return f"tenant-{uuid.uuid4().hex[:12]}"


async def test_a_schedule_from_its_creation_to_its_end(redrive: CommandLine) -> None:
    """Created, triggered, caught up, paused, resumed and deleted; each is in the audit log with who and why."""
    tenant = new_tenant()
    of = ("--tenant", tenant, "--json")
    why = ("--reason", "a test", "--by", "ada")
    created = await redrive(
        "schedule", "create", "nightly", "hello", *DAILY, "--payload", ADA, "--by", "ada", *LABEL, *of
    )
    assert (created.document["payload"], created.document["labels"]) == ({"name": "Ada"}, {"mission_id": "42"})
    run_id = (await redrive("schedule", "trigger", "nightly", *why, *of)).document["run_id"]

    async def done() -> bool:
        return bool((await redrive("run", "status", run_id, "--json")).document["status"] == "SUCCESS")

    await eventually(done)
    period = ("--since", "2026-05-01T00:00", "--until", "2026-05-03T00:00", "--yes")
    assert (await redrive("schedule", "backfill", "nightly", *period, *why, *of)).document["due"] == 2
    assert (await redrive("schedule", "pause", "nightly", *why, *of)).document["note"] == "a test (ada)"
    assert not (await redrive("schedule", "resume", "nightly", *why, *of)).document["paused"]
    shown = await redrive("schedule", "show", "nightly", "--tenant", tenant)
    listed = await redrive("schedule", "list", "--tenant", tenant)
    assert (await redrive("schedule", "delete", "nightly", "--yes", *why, *of)).document["deleted"]
    gone = await redrive("schedule", "show", "nightly", "--tenant", tenant)
    trail = (await redrive("audit", "list", *of)).document
    assert "0 5 * * * Europe/Vienna" in shown.out
    assert run_id in shown.out
    assert "allow-all" in shown.out
    assert "mission_id=42" in shown.out
    assert "0 5 * * * Europe/Vienna" in listed.out
    assert (gone.code, gone.sentence.endswith("[schedule_not_found]")) == (1, True)
    verbs = ("delete", "resume", "pause", "backfill", "trigger", "create")
    assert [entry["action"] for entry in trail] == [f"schedule_{verb}_requested" for verb in verbs]
    assert {(entry["actor"], entry["after"]["schedule"]) for entry in trail} == {("ada", "nightly")}
    assert {entry["reason"] for entry in trail[:-1]} == {"a test"}


async def test_a_list_that_is_cut_says_so(redrive: CommandLine) -> None:
    """With more schedules than fit, stderr says which option shows them."""
    tenant = new_tenant()
    for name in ("first", "second"):
        await redrive("schedule", "create", name, "hello", *DAILY, "--payload", ADA, "--tenant", tenant)
    words = ("schedule", "list", "--tenant", tenant, "--json", "--limit")

    async def both_are_listed() -> bool:
        return len((await redrive(*words, "2")).document) == 2

    await eventually(both_are_listed)
    first = await redrive(*words, "1")
    assert (len(first.document), first.err) == (1, "there are more: add --limit 10\n")
    assert (await redrive(*words, "2")).err == ""


async def test_a_wrong_schedule_is_refused_in_a_sentence(redrive: CommandLine) -> None:
    """Payload, times, zone and name are refused with what is wrong; nothing is created."""
    tenant = new_tenant()
    base = ("schedule", "create", "nightly")
    end = ("--tenant", tenant)
    said = {
        "payload": await redrive(*base, "hello", *DAILY, "--payload", '{"name": 7}', *end),
        "times": await redrive(*base, "hello", "--payload", ADA, *end),
        "cron": await redrive(*base, "hello", "--cron", "noon", "--payload", ADA, *end),
        "every": await redrive(*base, "hello", "--every", "often", "--payload", ADA, *end),
        "zone": await redrive(*base, "hello", *DAILY[:3], "Mars/Olympus", "--payload", ADA, *end),
        "name": await redrive("schedule", "create", "Nightly!", "hello", *DAILY, "--payload", ADA, *end),
    }
    assert {name: one.code for name, one in said.items()} == dict.fromkeys(said, 1)
    assert "name: Input should be a valid string (got 7)" in said["payload"].sentence
    assert "a schedule needs times" in said["times"].sentence
    assert "5-7 fields" in said["cron"].sentence
    assert "--every 'often': not a duration" in said["every"].sentence
    assert "Mars/Olympus" in said["zone"].sentence
    assert "name: String should match pattern" in said["name"].sentence
    assert (await redrive("schedule", "show", "nightly", *end)).code == 1
    trail = (await redrive("audit", "list", *end, "--json")).document
    # Times and zone are Temporal's to judge: the log has that they were asked for, and that they were refused.
    assert [entry["action"] for entry in trail] == ["schedule_create_refused", "schedule_create_requested"] * 2
    assert "Mars/Olympus" in trail[0]["reason"]


async def test_without_a_database_schedules_work_unaudited(redrive: CommandLine) -> None:
    """Temporal alone is enough."""
    bare = CommandLine(redrive.directory, **redrive.variables)
    del bare.variables["DATABASE_URL"]
    tenant = new_tenant()
    created = await bare("schedule", "create", "nightly", "hello", *DAILY, "--payload", ADA, "--tenant", tenant)
    deleted = await bare("schedule", "delete", "nightly", "--reason", "a test", "--yes", "--tenant", tenant)
    assert (created.code, deleted.code) == (0, 0), created.err + deleted.err
    assert "0 5 * * * Europe/Vienna" in created.out
