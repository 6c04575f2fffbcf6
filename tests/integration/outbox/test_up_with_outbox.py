"""`redrive up --with outbox`, and the page docs/outbox.md as it is written."""

import json
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from functools import partial
from typing import Any

import asyncpg
import pytest

import redrive.outbox
from tests.acceptance.live import COMMAND, ROOT, Up, environment, working_directory
from tests.conftest import eventually

PAGE = (ROOT / "docs/outbox.md").read_text()


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """The stack with an outbox and its bridge."""
    with working_directory() as directory, Up(directory, "--with", "outbox") as up:
        yield up


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def run(up: Up, line: str) -> Any:
    words = shlex.split(line)
    assert words[0] == "redrive"
    done = subprocess.run(
        [COMMAND, *words[1:], "--json"],
        cwd=up.directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


def _url(up: Up) -> str:
    """The address that the page gives to psql: by that login its own table can be made."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith("psql "))
    told = subprocess.run(
        ["bash", "-c", line.replace("psql", "echo", 1)],
        cwd=up.directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


@pytest.mark.long
async def test_page_is_true(up: Up) -> None:
    """The SQL and the Python of the page make rows, `up` makes runs of them, and the commands list both."""
    transaction, replay = blocks("sql")
    connection = await asyncpg.connect(_url(up))
    try:
        await connection.execute(transaction)
        code = textwrap.indent(blocks("python")[0].removeprefix("import redrive.outbox\n"), "    ")
        scope: dict[str, Any] = {"redrive": redrive}
        exec(f"async def page(connection):\n{code}", scope)  # noqa: S102
        await scope["page"](connection)
        rows = await eventually(partial(_delivered, up, 2), within=90)
        assert {row["key"] for row in rows} == {"order:ada:4711:place:v1", "order:grace:4712:place:v1"}
        with pytest.raises(asyncpg.InvalidParameterValueError, match="no row has this id"):
            await connection.execute(replay)
        assert "hello" in run(up, "redrive outbox sync")["pipelines"]
        with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
            await connection.execute("SELECT redrive.enqueue('hello', '{}')")
        assert f"`{refused.value}`" in PAGE
    finally:
        await connection.close()


async def _delivered(up: Up, count: int) -> list[dict[str, Any]] | None:
    listed, runs = (line for line in PAGE.splitlines() if line.endswith("list --tenant acme"))
    rows: list[dict[str, Any]] = run(up, listed)["rows"]
    if [row["status"] for row in rows] != ["delivered"] * count:
        return None
    assert {row["run_id"] for row in rows} <= {each["run_id"] for each in run(up, runs)}
    return rows
