"""However many rows wait, are under way or are over: a bridge and a list read the ones they ask for, and no others."""

from functools import partial

import asyncpg
import pytest

from redrive.bridges.outbox import follower
from redrive.outbox.rows import Outbox, OutboxFilter, OutboxStatus, call
from redrive.store.run_fates import Followed, RunFate, fates_of
from tests.conftest import eventually
from tests.integration.outbox.outbox_lab import OutboxLab

MANY = 5_000
# Rows that each kind has besides the ones that are looked for.
FILL = """
    INSERT INTO {0}.outbox
        (pipeline, key, payload, status, run_after, run_id, started_at, ended_at, check_at, deleted_at)
    SELECT 'order', kind || number, '{{}}', CASE WHEN kind IN ('later', 'withdrawn') THEN 'pending' ELSE kind END,
        now() + CASE kind WHEN 'withdrawn' THEN interval '-1 h' ELSE interval '1 day' END,
        CASE WHEN kind IN ('in_flight', 'delivered') THEN 'run-' || number END, now(),
        CASE kind WHEN 'delivered' THEN now() END, CASE kind WHEN 'in_flight' THEN now() + interval '1 h' END,
        CASE kind WHEN 'withdrawn' THEN now() END
    FROM generate_series(1, $1::integer) AS number, unnest($2::text[]) AS kind
"""
READ = """
    SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'outbox'
"""
# Also of rows that are dead: PostgreSQL finds out only when it has read them.
READ_IN_INDEXES = """
    SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = $1 AND relname = 'outbox'
"""


class Reads:
    """Counts the rows that one connection's statements read."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", schema: str, counter: str = READ) -> None:
        self._connection = connection
        self._schema = schema
        self._counter = counter

    async def so_far(self) -> int:
        """Return how many rows were read until now."""
        await self._connection.execute("SELECT pg_stat_force_next_flush()")
        return int(await self._connection.fetchval(self._counter, self._schema))


@pytest.mark.parametrize("function", ["take", "take_replays", "due"])
async def test_poll_reads_no_row_that_is_not_its_own(outbox: Outbox, team_url: str, function: str) -> None:
    """Thousands that are not due, under way, withdrawn and over, and one that is due: the poll reads that one."""
    connection = await asyncpg.connect(team_url)
    try:
        kinds = ["later", "in_flight", "delivered", "withdrawn", "failed"]
        await connection.execute(FILL.format(outbox.schema), MANY, kinds)
        own = {"take": "", "take_replays": ", replay_request = 'r'", "due": ", status = 'in_flight', check_at = now()"}
        await connection.execute(
            f"UPDATE {outbox.schema}.outbox SET run_after = now(){own[function]} WHERE key = 'later1'"  # noqa: S608
        )
        await connection.execute(f"ANALYZE {outbox.schema}.outbox")
        reads = Reads(connection, outbox.schema)
        before = await reads.so_far()
        assert [row["key"] for row in await call(connection, outbox.schema, function, 500)] == ["later1"]
        assert await reads.so_far() - before < 50
    finally:
        await connection.close()


async def test_look_behind_a_place_reads_no_row_that_was_taken(outbox: Outbox, team_url: str) -> None:
    """Not even while an old transaction keeps PostgreSQL from forgetting them, as a report or a backup does."""
    connection, report = await asyncpg.connect(team_url), await asyncpg.connect(team_url)
    try:
        await report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await report.fetchval("SELECT 1")
        await connection.execute(FILL.format(outbox.schema), MANY, ["later"])
        await connection.execute(f"UPDATE {outbox.schema}.outbox SET run_after = now()")  # noqa: S608
        taken = await call(connection, outbox.schema, "take", MANY - 1)
        ids = [row["event_id"] for row in taken]
        await call(connection, outbox.schema, "started", ids, [f"run-{each}" for each in ids], [0.0] * len(ids))
        reads = Reads(connection, outbox.schema, READ_IN_INDEXES)
        before = await reads.so_far()
        place = (taken[-1]["run_after"], taken[-1]["position"])
        assert len(await call(connection, outbox.schema, "take", 500, *place)) == 1
        behind = await reads.so_far()
        assert behind - before < 50
        assert len(await call(connection, outbox.schema, "take", 500)) == 1
        assert await reads.so_far() - behind > MANY - 50
    finally:
        await report.close()
        await connection.close()


async def test_list_of_a_status_does_not_read_all_others(outbox: Outbox, team_url: str) -> None:
    """The few rows in flight, pending or failed are found among however many that are delivered."""
    connection = await asyncpg.connect(team_url)
    try:
        await connection.execute(FILL.format(outbox.schema), MANY * 4, ["delivered"])
        await connection.execute(FILL.format(outbox.schema), 2, ["later", "in_flight", "failed"])
        await connection.execute(f"ANALYZE {outbox.schema}.outbox")
        for status in (OutboxStatus.PENDING, OutboxStatus.IN_FLIGHT, OutboxStatus.FAILED):
            plan = await connection.fetch(
                f"EXPLAIN SELECT * FROM {outbox.schema}.outbox WHERE deleted_at IS NULL AND status = '{status}' "  # noqa: S608
                "ORDER BY created_at DESC, event_id DESC LIMIT 51"
            )
            assert "outbox_undelivered" in " ".join(line[0] for line in plan)
            assert len((await outbox.list_rows(OutboxFilter(status=status))).rows) == 2
    finally:
        await connection.close()


async def test_looking_at_a_run_that_is_under_way_does_not_write_its_row(
    lab: OutboxLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bridge that started it asks again and again; the row stays as it is until there is news."""
    looks: list[str] = []

    async def counted(pool: object, runs: list[Followed]) -> dict[str, RunFate]:
        looks.extend(run.run_id for run in runs)
        return await fates_of(pool, runs)  # type: ignore[arg-type]

    monkeypatch.setattr(follower, "fates_of", counted)
    async with lab.bridge():
        row = await lab.becomes(await lab.enqueue(1), OutboxStatus.IN_FLIGHT)
        version = partial(lab.sql, "SELECT xmin::text FROM {}.outbox WHERE event_id = $1", row.event_id)
        before = await version()
        await eventually(lambda: _is_true(looks.count(row.run_id or "") >= 3))
        assert await version() == before


async def test_run_that_ended_without_a_record_ends_its_row(lab: OutboxLab) -> None:
    """Terminated in Temporal, and no worker was there to record it: the row has failed, and is over."""
    async with lab.bridge():
        first, second = await lab.enqueue(1), await lab.enqueue(2)
        row = await lab.becomes(first, OutboxStatus.IN_FLIGHT)
        await lab.becomes(second, OutboxStatus.IN_FLIGHT)
        await lab.temporal.get_workflow_handle(row.run_id or "").terminate("by hand")
        await lab.sql("UPDATE {}.outbox SET check_at = now()")
        over = await lab.becomes(first, OutboxStatus.FAILED)
        assert over.ended_at
        assert (await lab.row(second)).status is OutboxStatus.IN_FLIGHT


async def _is_true(value: bool) -> bool:
    return value
