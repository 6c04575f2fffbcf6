"""`redrive audit …` against a real database."""

from tests.integration.cli.command import CommandLine
from tests.integration.cli.operator import WHY, Operator


async def test_list_shows_who_did_what(operator: Operator) -> None:
    """Of one letter or of a tenant, the newest first."""
    letter, other = await operator.park(), await operator.park()
    assert (await operator.dlq("discard", letter, *WHY, "--yes")).code == 0
    lines = (await operator.command("audit", "list", "--letter", f"{letter.run_id}/pay", "--json")).document
    assert [(line["action"], line["actor"]) for line in lines] == [("discarded", "ada"), ("dead_lettered", "redrive")]
    table = await operator.command("audit", "list", "--tenant", operator.tenant, "--limit", "2")
    assert len(table.out.splitlines()) == 3
    assert f"dead letter {other.workflow_id}" in table.out
    assert table.err == "there are more: add --limit 20\n"
    unknown = await operator.command("audit", "list", "--letter", "run-0/pay")
    assert (unknown.code, unknown.out) == (1, "")
    assert "'run-0/pay'" in unknown.sentence


async def test_verify_names_the_row_that_was_changed(operator: Operator) -> None:
    """Whole: exit code 0. Changed by the database's owner: exit code 1 and the row's number."""
    letter = await operator.park()
    assert (await operator.dlq("discard", letter, *WHY, "--yes")).code == 0
    words = ("audit", "verify", "--tenant", operator.tenant)
    whole = await operator.command(*words)
    assert (whole.code, whole.err) == (0, "")
    assert "whole" in whole.out
    tamper = "UPDATE redrive.audit_log SET actor = $2 WHERE tenant = $1 AND number = 2"
    await operator.sql(tamper, operator.tenant, "mallory")
    broken = await operator.command(*words, "--json")
    assert broken.code == 1
    assert broken.document["whole"] is False
    assert broken.document["tenants"][0]["first_broken"] == 2
    assert f"tenant '{operator.tenant}' was changed: row 2 " in broken.sentence
    assert "BROKEN at row 2" in (await operator.command(*words)).out
    await operator.sql(tamper, operator.tenant, "ada")
    assert (await operator.command(*words)).code == 0


async def test_nothing_to_verify_is_said(redrive: CommandLine) -> None:
    """A misspelt tenant is not taken for a whole log."""
    said = await redrive("audit", "verify", "--tenant", "nobody")
    assert (said.code, said.out) == (1, "")
    assert "'nobody'" in said.sentence
