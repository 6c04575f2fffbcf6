"""Rows of the outbox: made in the caller's transaction, from SQL and from Python, or refused there."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import redrive.outbox
from redrive.errors import InvalidInput, NotConfigured
from redrive.outbox.installation import producer_grants
from redrive.outbox.rows import Outbox, OutboxFilter, OutboxStatus, install

KEY = "order:ann:4711:place:v1"
SHAPE = {
    "type": "object",
    "required": ["item", "lines"],
    "properties": {
        "item": {"type": "string", "minLength": 2},
        "count": {"type": "integer", "minimum": 1},
        "colour": {"anyOf": [{"enum": ["red", "blue"], "type": "string"}, {"type": "null"}]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
    },
    "additionalProperties": False,
    "$defs": {"Line": {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}},
}


class Lamp(BaseModel):
    item: str


@pytest.fixture
async def connection(team_url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """A connection of the team's own."""
    made = await asyncpg.connect(team_url)
    try:
        yield made
    finally:
        await made.close()


async def _keys(outbox: Outbox) -> list[str]:
    return sorted(row.key for row in (await outbox.list_rows(OutboxFilter())).rows)


async def test_sql_makes_a_row_when_the_transaction_commits(
    outbox: Outbox, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """The call of the documentation, word by word but for the schema: in the row is all that was given."""
    event_id = await connection.fetchval(
        f"""select {outbox.schema}.enqueue('order', '{{"item": "lamp"}}', key => '{KEY}',
            tenant => 'acme', run_after => now() + interval '5 min')"""
    )
    row = await outbox.get("acme", str(event_id))
    assert (row.pipeline, row.payload, row.key, row.status) == ("order", {"item": "lamp"}, KEY, OutboxStatus.PENDING)
    assert row.run_after - row.created_at == timedelta(minutes=5)


async def test_rolled_back_transaction_leaves_no_row(
    outbox: Outbox, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """A row exists if and only if its transaction commits."""
    transaction = connection.transaction()
    await transaction.start()
    await redrive.outbox.enqueue(connection, "order", {}, key="undone", schema=outbox.schema)
    await transaction.rollback()
    async with connection.transaction():
        await redrive.outbox.enqueue(connection, "order", {}, key="done", schema=outbox.schema)
    assert await _keys(outbox) == ["done"]


async def test_every_driver_enqueues_in_its_own_transaction(team_url: str, outbox: Outbox) -> None:
    """asyncpg, psycopg and SQLAlchemy, awaited and blocking: committed rows are there, rolled back ones are not."""
    schema, alchemy = outbox.schema, team_url.replace("postgresql://", "postgresql+psycopg://")
    facts: dict[str, Any] = {"tenant": "acme", "labels": {"mission_id": "42"}, "schema": schema}
    async with await psycopg.AsyncConnection.connect(team_url) as psycopg_connection:
        await redrive.outbox.enqueue(psycopg_connection, "order", Lamp(item="lamp"), key="psycopg", **facts)
    async with await psycopg.AsyncConnection.connect(team_url) as psycopg_connection:
        await redrive.outbox.enqueue(psycopg_connection, "order", {}, key="no", **facts)
        await psycopg_connection.rollback()
    with psycopg.connect(team_url) as blocking:
        redrive.outbox.enqueue_sync(blocking, "order", {}, key="psycopg-sync", **facts)
    engine = create_async_engine(alchemy.replace("+psycopg", "+asyncpg"))
    async with AsyncSession(engine) as session, session.begin():
        await redrive.outbox.enqueue(session, "order", {}, key="sqlalchemy", run_after=datetime.now(UTC), **facts)
    await engine.dispose()
    blocking_engine = create_engine(alchemy)
    with Session(blocking_engine) as blocking_session:
        redrive.outbox.enqueue_sync(blocking_session, "order", {}, key="sqlalchemy-sync", **facts)
        blocking_session.commit()
        redrive.outbox.enqueue_sync(blocking_session, "order", {}, key="not-this-one", **facts)
        blocking_session.rollback()
    blocking_engine.dispose()
    assert await _keys(outbox) == ["psycopg", "psycopg-sync", "sqlalchemy", "sqlalchemy-sync"]
    (row, *_) = (await outbox.list_rows(OutboxFilter(key="psycopg"))).rows
    assert row.labels == {"mission_id": "42"}


async def test_same_key_is_the_same_row(outbox: Outbox, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Enqueued twice, one row; with another payload it is refused, and the first row stays as it was."""

    async def enqueue(item: str) -> Any:
        return await redrive.outbox.enqueue(connection, "order", {"item": item}, key=KEY, schema=outbox.schema)

    first = await enqueue("lamp")
    assert await enqueue("lamp") == first
    with pytest.raises(InvalidInput, match="was used for another pipeline or payload"):
        await enqueue("chair")
    assert (await outbox.get(None, str(first))).payload == {"item": "lamp"}


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"lines": []}, "payload.item: is missing"),
        ({"item": 5, "lines": []}, "payload.item: is number, must be string"),
        ({"item": "a", "lines": []}, "payload.item: has fewer than 2 characters"),
        ({"item": "lamp", "lines": [], "count": 0}, "payload.count: 0 is out of range"),
        ({"item": "lamp", "lines": [{"sku": "1"}, {}]}, r"payload.lines\[1\].sku: is missing"),
        ({"item": "lamp", "lines": [], "size": 1}, "payload.size: is not a field"),
        ({"item": "lamp", "lines": [], "colour": "grey"}, "payload.colour: .*grey.* is not one of"),
    ],
)
async def test_payload_that_does_not_fit_is_refused_with_its_field(
    outbox: Outbox, connection: "asyncpg.Connection[asyncpg.Record]", payload: dict[str, Any], problem: str
) -> None:
    """Where the schema is known, the transaction is told which field is wrong, and there is no row."""
    await outbox.put_schemas({"order": SHAPE})
    with pytest.raises(InvalidInput, match=problem):
        await redrive.outbox.enqueue(connection, "order", payload, schema=outbox.schema)
    assert await _keys(outbox) == []


async def test_payload_that_a_module_reads_is_not_refused(
    outbox: Outbox, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """Modules read "5" as a number: what they take, the outbox takes. A pipeline without a schema takes anything."""
    await outbox.put_schemas({"order": SHAPE})
    good = {"item": "lamp", "count": "5", "colour": None, "lines": [{"sku": "1", "more": 1}]}
    await redrive.outbox.enqueue(connection, "order", good, key="fits", schema=outbox.schema)
    await redrive.outbox.enqueue(connection, "other", {"x": 1}, key="unknown", schema=outbox.schema)
    await outbox.put_schemas({})
    await redrive.outbox.enqueue(connection, "order", {"x": 1}, key="forgotten", schema=outbox.schema)
    assert await _keys(outbox) == ["fits", "forgotten", "unknown"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tenant": "Acme Inc"}, "tenant: "),
        ({"key": "two words"}, "key: "),
        ({"labels": {"no spaces": "x"}}, "labels: "),
        ({"run_after": datetime(2030, 1, 1)}, "run_after: .*time zone"),  # noqa: DTZ001
        ({"schema": "robert'; drop"}, "schema: "),
        ({"key": "AKIAIOSFODNN7EXAMPLE"}, "key: .*looks like a credential"),
    ],
)
async def test_bad_arguments_are_refused_by_name(
    outbox: Outbox, connection: "asyncpg.Connection[asyncpg.Record]", given: dict[str, Any], problem: str
) -> None:
    """What a bridge would refuse later is refused at once, by the argument's name."""
    with pytest.raises(InvalidInput, match=problem):
        await redrive.outbox.enqueue(connection, "order", {}, **({"schema": outbox.schema} | given))


async def test_what_sql_is_given_wrongly_is_refused_by_name(
    outbox: Outbox, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """From SQL as from Python: a sentence with the argument's name."""
    calls = {
        "pipeline: must": "'Order', '{}'",
        "payload: must be a JSON object": "'order', '[]'",
        "tenant: must": "'order', '{}', tenant => ''",
        "key: must": "'order', '{}', key => 'a b'",
    }
    for problem, arguments in calls.items():
        with pytest.raises(asyncpg.InvalidParameterValueError, match=problem):
            await connection.fetchval(f"SELECT {outbox.schema}.enqueue({arguments})")


async def test_missing_outbox_and_foreign_connection_are_told(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    """A schema without an outbox, and an object that is no connection: what to do is in the message."""
    with pytest.raises(NotConfigured, match="redrive outbox install"):
        await redrive.outbox.enqueue(connection, "order", {}, schema="nowhere")
    with pytest.raises(InvalidInput, match=r"connection: builtins\.str"):
        await redrive.outbox.enqueue("connection", "order", {})
    with pytest.raises(InvalidInput, match="connection: asyncpg"):
        redrive.outbox.enqueue_sync(connection, "order", {})


async def test_producer_may_enqueue_and_nothing_else(
    outbox: Outbox, team_url: str, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """A role with the producer's grants enqueues; it reads no row and replays none. Installing again is harmless."""
    role = f"shop_{outbox.schema}"
    await connection.execute(f"CREATE ROLE {role}")
    await connection.execute(f"GRANT {role} TO current_user")
    await install(team_url, outbox.schema, producer_grants(outbox.schema, role))
    await connection.execute(f"SET ROLE {role}")
    await redrive.outbox.enqueue(connection, "order", {}, key=KEY, schema=outbox.schema)
    for forbidden in ("SELECT * FROM {}.outbox", "SELECT {}.outbox_replay(gen_random_uuid(), 1, 'ann')"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(forbidden.format(outbox.schema))
    await connection.execute("RESET ROLE")
    assert await _keys(outbox) == [KEY]
