"""Temporal's data is lost and PostgreSQL's is kept: nobody is offered what cannot be done."""

from typing import Any

import httpx

from tests.acceptance.live import Up, working_directory
from tests.conftest import eventually
from tests.integration.cli.command import CommandLine


async def test_no_command_is_offered_for_a_run_that_is_not_in_this_temporal() -> None:
    """The command line, the API and the page name what to do instead; after that, they offer what is left to do."""
    with working_directory() as directory:
        redrive = CommandLine(directory)

        async def show(*words: str) -> str:
            said = await redrive("dlq", "show", letter, *words)
            assert said.code == 0, said.err
            return said.out

        with Up(directory):
            letter = await _dead_letter(redrive)
            assert "next: `redrive dlq replay" in await show()
        for file in (directory / ".redrive" / "temporal").iterdir():
            file.unlink()
        with Up(directory, "--workers", "0") as up:
            shown = await show()
            assert "its run is not in this Temporal" in shown
            assert "`redrive reconcile --adopt`" in shown
            assert "dlq replay" not in shown
            detail, page = await _in_console(up, letter)
            assert (detail["commands"], "`redrive reconcile --adopt`" in detail["home_problem"]) == ([], True)
            assert "The run is not in this Temporal" in page
            assert "data-api" not in page
            await redrive("reconcile", "--adopt", "--repair")
            shown = await show()
            assert "not in this Temporal" not in shown
            assert "or discard (a restart needs the run's history" in shown

            async def page_offers_both() -> bool:
                _, page = await _in_console(up, letter)
                return all(
                    f'data-api="/api/v1/workflow-dlq/{letter}/{verb}"' in page for verb in ("restart", "discard")
                )

            await eventually(page_offers_both)


async def _dead_letter(redrive: CommandLine) -> str:
    """Start an order without its service, and return the dead letter's id."""
    started = await redrive("run", "start", "order", "--payload", '{"item": "book", "quantity": 1}')
    assert started.code == 0, started.err

    async def listed() -> str | None:
        letters = (await redrive("dlq", "list", "--json")).document["dead_letters"]
        return letters[0]["id"] if letters else None

    return await eventually(listed)


async def _in_console(up: Up, letter: str) -> tuple[Any, str]:
    """Return a dead letter as the API and the page show it."""
    token = (up.directory / ".redrive" / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=up.info.console or "", headers=headers, timeout=30) as console:
        detail = await console.get(f"/api/v1/workflow-dlq/{letter}")
        return detail.json(), (await console.get(f"/dead-letters/{letter}")).text
