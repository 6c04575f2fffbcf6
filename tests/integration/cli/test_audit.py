"""`redrive audit …` against a real database."""

from tests.integration.cli.command import CommandLine
from tests.integration.cli.desk import WHY, Desk


async def test_list_shows_who_did_what(desk: Desk) -> None:
    """Of one letter or of a tenant, the newest first."""
    letter, other = await desk.park(), await desk.park()
    assert (await desk.dlq("discard", letter, *WHY, "--yes")).code == 0
    lines = (await desk.command("audit", "list", "--letter", f"{letter.run_id}/pay", "--json")).document
    assert [(line["action"], line["actor"]) for line in lines] == [("discarded", "ada"), ("dead_lettered", "redrive")]
    table = await desk.command("audit", "list", "--tenant", desk.tenant, "--limit", "2")
    assert len(table.out.splitlines()) == 3
    assert other.workflow_id in table.out
    unknown = await desk.command("audit", "list", "--letter", "run-0/pay")
    assert (unknown.code, unknown.out) == (1, "")
    assert "'run-0/pay'" in unknown.sentence


async def test_verify_names_the_row_that_was_changed(desk: Desk) -> None:
    """Whole: exit code 0. Changed by the database's owner: exit code 1 and the row's number."""
    letter = await desk.park()
    assert (await desk.dlq("discard", letter, *WHY, "--yes")).code == 0
    words = ("audit", "verify", "--tenant", desk.tenant)
    whole = await desk.command(*words)
    assert (whole.code, whole.err) == (0, "")
    assert "whole" in whole.out
    tamper = "UPDATE redrive.audit_log SET actor = $2 WHERE tenant = $1 AND number = 2"
    await desk.sql(tamper, desk.tenant, "mallory")
    broken = await desk.command(*words, "--json")
    assert broken.code == 1
    assert broken.document["whole"] is False
    assert broken.document["tenants"][0]["first_broken"] == 2
    assert f"tenant '{desk.tenant}' was changed: row 2 " in broken.sentence
    assert "BROKEN at row 2" in (await desk.command(*words)).out
    await desk.sql(tamper, desk.tenant, "ada")
    assert (await desk.command(*words)).code == 0


async def test_nothing_to_verify_is_said(redrive: CommandLine) -> None:
    """A misspelt tenant is not taken for a whole log."""
    said = await redrive("audit", "verify", "--tenant", "nobody")
    assert (said.code, said.out) == (1, "")
    assert "'nobody'" in said.sentence
