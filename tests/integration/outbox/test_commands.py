"""`redrive outbox …` and `redrive bridge outbox` as typed, on an outbox in a database of the team's own."""

import asyncio
import contextlib
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually, owner_url
from tests.integration.cli.command import CommandLine

SLOW = 60
SHOP = """
from pydantic import BaseModel
from redrive import ModuleContext, Pipeline, module

class Order(BaseModel):
    title: str

@module("pack")
async def pack(ctx: ModuleContext, order: Order) -> Order:
    return order

Pipeline("order", pack)
"""


@pytest.fixture
async def redrive(stack: StackInfo, team_url: str, tmp_path: Path) -> CommandLine:
    """The command, for an outbox in a schema of its own that is not installed yet."""
    return CommandLine(
        tmp_path,
        TEMPORAL_ADDRESS=stack.temporal_address,
        DATABASE_URL=stack.database_url.get_secret_value(),
        REDRIVE_OWNER_DATABASE_URL=owner_url(stack),
        REDRIVE_TASK_QUEUE=f"queue-{uuid.uuid4().hex[:12]}",
        OUTBOX_URL=team_url,
        REDRIVE_OUTBOX_SCHEMA=f"jobs_{uuid.uuid4().hex[:8]}",
    )


@contextlib.asynccontextmanager
async def _serving(redrive: CommandLine, *words: str) -> AsyncIterator[None]:
    ready = redrive.directory / f"ready-{words[-1]}"
    process = await redrive.start(*words, REDRIVE_READY_FILE=str(ready))
    draining = asyncio.create_task(process.communicate())
    try:
        await eventually(lambda: asyncio.to_thread(ready.exists), within=SLOW)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        _, err = await draining
    assert process.returncode == 0, err.decode()


async def test_outbox_is_installed_used_and_purged(redrive: CommandLine, team_url: str) -> None:
    """Install, sync, enqueue by SQL, two processes, list, show, purge: one row from the first word to the last."""
    schema = redrive.variables["REDRIVE_OUTBOX_SCHEMA"]
    missing = await redrive("outbox", "list")
    assert missing.code == 1
    assert "`redrive outbox install` makes it" in missing.sentence
    assert (await redrive("outbox", "install")).out == f"the outbox is in the schema {schema}\n"
    async with _serving(redrive, "worker"), _serving(redrive, "bridge", "outbox"):
        synced = (await redrive("outbox", "sync", "--json")).document
        assert "hello" in synced["pipelines"]
        connection = await asyncpg.connect(team_url)
        with pytest.raises(asyncpg.InvalidParameterValueError, match=r"payload\.name: is missing"):
            await connection.execute(f"SELECT {schema}.enqueue('hello', '{{}}')")
        event_id = await connection.fetchval(f"""SELECT {schema}.enqueue('hello', '{{"name": "Ada"}}', key => 'one')""")
        await connection.close()
        row = await eventually(lambda: _delivered(redrive, str(event_id)), within=SLOW)
    assert row["payload"] == {"name": "Ada"}
    listed = (await redrive("outbox", "list", "--status", "delivered", "--json")).document["rows"]
    assert [each["key"] for each in listed] == ["one"]
    assert "delivered" in (await redrive("outbox", "show", str(event_id))).out
    refused = await redrive("outbox", "replay", str(event_id), "--reason", "again", "--yes")
    assert "is delivered: only a failed one" in refused.sentence
    assert (await redrive("outbox", "purge", "--older-than", "0s", "--dry-run", "--json")).document["rows"] == 1
    assert (await redrive("outbox", "purge", "--older-than", "0s", "--yes")).out == "1 rows deleted\n"
    assert (await redrive("outbox", "list", "--json")).document["rows"] == []


async def _delivered(redrive: CommandLine, event_id: str) -> dict[str, object] | None:
    row: dict[str, object] = (await redrive("outbox", "show", event_id, "--json")).document
    return row if row["status"] == "delivered" else None


async def test_bridge_without_modules_of_its_own_goes_by_what_workers_publish(
    redrive: CommandLine, team_url: str
) -> None:
    """Redrive comes with an example that is called `order` as well: it says nothing about the worker's own."""
    schema = redrive.variables["REDRIVE_OUTBOX_SCHEMA"]
    (redrive.directory / "shop.py").write_text(SHOP)
    await redrive("outbox", "install")
    async with _serving(redrive, "worker", "--modules", "shop"), _serving(redrive, "bridge", "outbox"):
        connection = await asyncpg.connect(team_url)
        ids = [
            await connection.fetchval(f"SELECT {schema}.enqueue('order', $1::jsonb)", payload)
            for payload in ('{"title": "lamp"}', "{}")
        ]
        await connection.close()
        await eventually(lambda: _delivered(redrive, str(ids[0])), within=SLOW)
        (failed,) = await eventually(lambda: _rows(redrive, "failed"), within=SLOW)
    assert failed["event_id"] == str(ids[1])
    assert failed["last_error"] == "payload does not fit 'pack': title: Field required"


async def _rows(redrive: CommandLine, status: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = (await redrive("outbox", "list", "--status", status, "--json")).document["rows"]
    return rows


async def test_printed_sql_is_the_same_outbox(redrive: CommandLine, team_url: str) -> None:
    """`--print` gives SQL for migrations of one's own; executed, it is an outbox that the commands know."""
    schema = redrive.variables["REDRIVE_OUTBOX_SCHEMA"]
    said = await redrive("outbox", "install", "--print", "--producer", "postgres")
    connection = await asyncpg.connect(team_url)
    try:
        await connection.execute(f"CREATE ROLE {schema}")
        await connection.execute(said.out.replace('"postgres"', schema))
    finally:
        await connection.close()
    assert (await redrive("outbox", "list", "--json")).document == {"rows": [], "cursor": None}


async def test_operator_who_may_not_purge_is_told_so(redrive: CommandLine, team_url: str) -> None:
    """An operator's login reads rows and replays them. Trying again would not help."""
    role = redrive.variables["REDRIVE_OUTBOX_SCHEMA"]
    connection = await asyncpg.connect(team_url)
    await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    await connection.close()
    await redrive("outbox", "install", "--operator", role)
    server = team_url.partition("@")[2]
    refused = await redrive("outbox", "purge", "--yes", OUTBOX_URL=f"postgresql://{role}:secret@{server}")
    assert refused.code == 1
    assert "the database's login lacks the permission: permission denied for table outbox [" in refused.sentence


async def test_show_tells_what_a_row_waits_for(redrive: CommandLine, team_url: str) -> None:
    """Its time, its order and its labels; and a purge leaves it where it is."""
    schema = redrive.variables["REDRIVE_OUTBOX_SCHEMA"]
    await redrive("outbox", "install")
    connection = await asyncpg.connect(team_url)
    try:
        event_id = [
            await connection.fetchval(
                f"""SELECT {schema}.enqueue('hello', '{{}}', run_after => '2040-05-06 07:08:09Z', ordering_key => 'ada',
                    labels => '{{"stage_id": "2"}}')"""
            )
            for _ in range(2)
        ][1]
    finally:
        await connection.close()
    shown = (await redrive("outbox", "show", str(event_id))).out
    assert "run after: 2040-05-06 07:08:09" in shown
    assert "ordering key: ada (behind an earlier row)" in shown
    assert "labels: stage_id=2" in shown
    assert (await redrive("outbox", "purge", "--older-than", "0s", "--yes")).out == "0 rows deleted\n"


async def test_wrong_words_are_refused_in_a_sentence(redrive: CommandLine) -> None:
    """The option or value is named, whether there is an outbox or not."""
    wrong = {
        "schema: 'a b' must": ("list", "--schema", "a b"),
        "no row has the id '17'": ("show", "17"),
        "--older-than 'soon': not a duration": ("purge", "--older-than", "soon", "--yes"),
    }
    for problem, words in wrong.items():
        said = await redrive("outbox", *words)
        assert said.code == 1
        assert problem in said.sentence
