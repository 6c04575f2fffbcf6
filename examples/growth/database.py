"""The platform's own database, which GROWTH_DATABASE_URL names: its connections, and the statements on it.

Every statement can be repeated: it writes by a key of the domain, and what it writes depends on nothing but its input.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import astuple, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

import asyncpg

from redrive import Category, Terminal, resource

VARIABLE: Final = "GROWTH_DATABASE_URL"
STAGES: Final = ("interview", "plan", "practice", "offer")
_TABLES: Final = Path(__file__).with_name("tables.sql")
# Any number, of all that create these tables at once.
_LOCK: Final = 4_711_000
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

_OPEN_MISSION: Final = """
    INSERT INTO growth.mission_instances (id, mission_id, user_id) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING
"""
_PUT_SCORE: Final = """
    INSERT INTO growth.qscore_latest (user_id, signal_id, score, completed_at) VALUES ($1, $2, $3, $4)
    ON CONFLICT (user_id, signal_id) DO UPDATE SET score = excluded.score, completed_at = excluded.completed_at
    WHERE excluded.completed_at >= qscore_latest.completed_at
"""
_PUT_SESSION: Final = """
    INSERT INTO growth.mission_service_sessions (service_id, external_id, mission_instance_id, status)
    VALUES ($1, $2, $3, $4) ON CONFLICT (service_id, external_id) DO UPDATE SET status = excluded.status
"""
_PUT_STAGE: Final = """
    INSERT INTO growth.mission_stages (mission_instance_id, stage_id, status, suggestion) VALUES ($1, $2, $3, $4)
    ON CONFLICT (mission_instance_id, stage_id) DO UPDATE SET status = excluded.status, suggestion = excluded.suggestion
"""
# Counted, not added to: the same stage twice is the same progress.
_PUT_PROGRESS: Final = """
    UPDATE growth.mission_instances SET progress = 100 * (
        SELECT count(*) FROM growth.mission_stages WHERE mission_instance_id = $1 AND status = 'done'
    ) / $2 WHERE id = $1 RETURNING progress
"""
_PUT_ARTIFACT: Final = """
    INSERT INTO growth.artifacts (mission_instance_id, service_id, external_id, type, content)
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (mission_instance_id, service_id, external_id, type) DO NOTHING
"""


@dataclass(frozen=True)
class ArtifactKey:
    """What makes an artifact the same one: its mission, the service that made it, its id there, and its type."""

    mission_instance_id: str
    service_id: str
    external_id: str
    type: str


class GrowthDatabase:
    """Connected on first use, and its tables created: a worker that runs no step of this example needs none of it."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._pool: Pool | None = None
        self._connecting = asyncio.Lock()

    async def pool(self) -> Pool:
        """Return the connections, or say which variable is missing."""
        if not self._url:
            raise Terminal(f"set {VARIABLE} to a PostgreSQL database for the example", category=Category.MISSING_CONFIG)
        async with self._connecting:
            if self._pool is None:
                await _create_tables(self._url)
                self._pool = await asyncpg.create_pool(self._url, min_size=1, max_size=5)
        return self._pool

    async def close(self) -> None:
        """Close the connections."""
        if self._pool:
            await self._pool.close()


async def _create_tables(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await connection.execute(_TABLES.read_text(encoding="utf-8"))
    finally:
        await connection.close()


@resource
async def growth_database() -> AsyncIterator[GrowthDatabase]:
    """The platform's database, for as long as the worker runs."""
    database = GrowthDatabase(os.environ.get(VARIABLE))
    yield database
    await database.close()


async def open_mission(pool: Pool, instance: str, mission: str, user: str) -> None:
    """Create a mission's instance, unless it is there."""
    await pool.execute(_OPEN_MISSION, instance, mission, user)


async def put_scores(pool: Pool, user: str, scores: Mapping[str, int], completed_at: datetime) -> None:
    """Keep the latest score of each signal. An older one that arrives late changes nothing."""
    rows = [(user, signal, score, completed_at) for signal, score in sorted(scores.items())]
    await pool.executemany(_PUT_SCORE, rows)


async def put_session(pool: Pool, service: str, external_id: str, instance: str, status: str) -> None:
    """Keep a service's session, once for each of its own ids."""
    await pool.execute(_PUT_SESSION, service, external_id, instance, status)


async def complete_stage(pool: Pool, instance: str, stage: str, suggestion: str) -> int:
    """Mark a stage as done, with one suggestion, and return the mission's progress in percent."""
    async with pool.acquire() as connection, connection.transaction():
        # Stages of one mission wait for each other: each counts all that are done.
        known = await connection.fetchval("SELECT id FROM growth.mission_instances WHERE id = $1 FOR UPDATE", instance)
        if known is None:
            raise Terminal(f"there is no mission instance {instance!r}: start the mission, then replay this step")
        await connection.execute(_PUT_STAGE, instance, stage, "done", suggestion)
        return int(await connection.fetchval(_PUT_PROGRESS, instance, len(STAGES)))


async def put_artifact(pool: Pool, key: ArtifactKey, content: str) -> None:
    """Keep an artifact, once for each key."""
    await pool.execute(_PUT_ARTIFACT, *astuple(key), content)
