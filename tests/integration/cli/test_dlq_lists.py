"""`redrive dlq list|show|stats|watch` against a real worker process."""

import asyncio

from tests.integration.cli.command import CommandLine
from tests.integration.cli.operator import WHY, Operator, settled


async def test_list_finds_what_every_filter_fits(operator: Operator) -> None:
    """All filters together find the letter; one that does not fit leaves nothing."""
    letter = await operator.park()
    record = await operator.record(letter)
    assert record
    fits = ("--status", "pending", "--pipeline", "trip", "--module", "pay", "--step", "pay", "--category", "validation")
    times = ("--fingerprint", record["fingerprint"], "--since", "1h", "--until", "2200-01-01", "--text", "stolen")
    words = ("dlq", "list", "--tenant", operator.tenant, *fits, *times)
    rows = (await operator.command(*words, "--json")).document
    assert [row["id"] for row in rows["dead_letters"]] == [letter.workflow_id]
    assert rows["cursor"] is None
    table = await operator.command("dlq", "list", "--tenant", operator.tenant)
    assert (table.code, len(table.out.splitlines())) == (0, 2)
    assert letter.workflow_id in table.out
    assert "the card is stolen" in table.out
    none = await operator.command("dlq", "list", "--tenant", operator.tenant, "--until", "1h")
    assert (none.code, none.out, none.err) == (0, "", "no open dead letters\n")


async def test_pages_follow_each_other(operator: Operator) -> None:
    """The cursor goes on where the page ended, relative times included; a wrong cursor is refused."""
    parked = await asyncio.gather(*(operator.park() for _ in range(3)))
    words = ("dlq", "list", "--tenant", operator.tenant, "--since", "1h", "--limit", "2", "--json")
    first = (await operator.command(*words)).document
    second = (await operator.command(*words, "--cursor", first["cursor"])).document
    seen = [row["id"] for page in (first, second) for row in page["dead_letters"]]
    assert len(seen) == 3
    assert set(seen) == {letter.workflow_id for letter in parked}
    assert second["cursor"] is None
    for cursor, about in ((first["cursor"], "other filters"), ("17:bogus", "not one that a list gave")):
        wrong = await operator.command("dlq", "list", "--cursor", cursor)
        assert (wrong.code, wrong.out) == (1, "")
        assert about in wrong.sentence


async def test_show_tells_the_whole_story(operator: Operator) -> None:
    """Failure, cycles, tries, redacted input, policy, orders and audit; what steers a terminal is made visible."""
    letter = await operator.park(error="the [red]card\x1b[31m is stolen", password="hunter2")
    await operator.dlq("replay", letter, *WHY, "--wait", "--yes")
    story = await operator.command("dlq", "show", f"{letter.run_id}/pay")
    assert story.code == 0
    for part in (
        r"the [red]card\x1b[31m is stolen",
        "cycle 2, replayed by ada",
        "replay_requested",
        "redrive dlq replay",
    ):
        assert part in story.out
    assert '"password": "[redacted]"' in story.out
    assert "\x1b" not in story.out
    document = (await operator.dlq("show", letter, "--json")).document
    assert [entry["cycle"] for entry in document["failure_history"]] == [1, 2]
    assert [entry["action"] for entry in document["audit"]] == ["dead_lettered", "replay_requested", "dead_lettered"]
    assert (document["replayed_by"], document["replay_reason"], document["links"]) == ("ada", "a test", {})


async def test_unknown_letter_is_named(redrive: CommandLine) -> None:
    """Every command that takes an id refuses one that nobody has."""
    verbs = (("show",), ("watch",), ("replay", *WHY, "--yes"), ("discard", *WHY, "--yes"))
    for said in await asyncio.gather(*(redrive("dlq", verb, "run-0/pay", *words) for verb, *words in verbs)):
        assert (said.code, said.out) == (1, "")
        assert "'run-0/pay'" in said.sentence
        assert said.sentence.endswith("[dead_letter_not_found]")


async def test_stats_count_and_group(operator: Operator) -> None:
    """Letters that look alike are one group."""
    await asyncio.gather(operator.park(), operator.park())
    document = (await operator.command("dlq", "stats", "--tenant", operator.tenant, "--json")).document
    assert (document["open"], document["by_status"]["pending"]) == (2, 2)
    assert [(group["count"], group["step"]) for group in document["groups"]] == [(2, "pay")]
    said = await operator.command("dlq", "stats", "--tenant", operator.tenant)
    assert said.code == 0
    assert document["groups"][0]["fingerprint"] in said.out


async def test_watch_ends_when_the_letter_is_closed(operator: Operator) -> None:
    """Each change is a line; the last one says how it ended."""
    letter = await operator.park()
    watching = await operator.command.start("dlq", "watch", letter.workflow_id)
    assert watching.stdout
    first = (await watching.stdout.readline()).decode()
    assert "pending  cycle 1  validation: the card is stolen" in first
    operator.mend()
    answer = await operator.redrive.dead_letters.replay(letter, requested_by="ada", reason="a test")
    assert answer.accepted
    said = await settled(watching)
    assert (said.code, said.err) == (0, "")
    assert "replayed  cycle 1" in said.out.splitlines()[-1]
    assert (await operator.dlq("watch", letter, "--json")).document["status"] == "replayed"
