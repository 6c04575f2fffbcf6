"""Each projector of the example, run again and out of order, on a real PostgreSQL."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest

from redrive import Category, Event, Module, Terminal
from redrive.examples.growth.database import GrowthDatabase, Pool, complete_stage, open_mission
from redrive.examples.growth.projectors import Completed, Given, artifact, mission_stage, qscore, service_session
from redrive.starter.growth.servers import keep_database
from redrive.starter.stack.state import StackInfo
from tests.conftest import owner_url


@dataclass(frozen=True)
class Case:
    """A user with a mission, and events of their interviews."""

    pool: Pool
    context: Mock
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def event(self, at: str, scores: Mapping[str, int] = MappingProxyType({"a": 1}), session: str = "s1") -> Given:
        """Return an event that is completed at a time of the day."""
        payload = Completed.model_validate(
            {
                "user_id": self.name,
                "mission_instance_id": self.name,
                "session_id": f"{self.name}-{session}",
                "completed_at": f"2026-06-05T{at}:00Z",
                "scores": dict(scores),
            }
        )
        return Given(
            event=Event(id="event-1", dedupe_key="k", type="interview.completed", source="tests", payload=payload)
        )

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return what a statement finds of the user."""
        return [tuple(row) for row in await self.pool.fetch(statement, self.name)]


@pytest.fixture
async def case(stack: StackInfo) -> AsyncIterator[Case]:
    """A case of the test's own, whose modules get the example's database."""
    database = GrowthDatabase(await keep_database(owner_url(stack)))
    context = Mock()
    context.resource.return_value = database
    yield Case(await database.pool(), context)
    await database.close()


async def test_latest_score_of_each_signal_is_kept(case: Case) -> None:
    """A repeated event changes nothing, and neither does an older one that arrives late."""
    newer, older = case.event("11:00", {"clarity": 90}), case.event("10:00", {"clarity": 50, "depth": 60})
    for event in (newer, newer, older, newer):
        await qscore(case.context, event)
    found = await case.rows("SELECT signal_id, score FROM growth.qscore_latest WHERE user_id = $1 ORDER BY 1")
    assert found == [("clarity", 90), ("depth", 60)]


async def test_scores_in_any_order_at_once_do_not_block_each_other(case: Case) -> None:
    """Events with the same signals in other orders are written side by side."""
    events = [case.event("10:00", scores) for scores in ({"a": 1, "b": 2}, {"b": 2, "a": 1})] * 10
    await asyncio.gather(*(qscore(case.context, event) for event in events))
    assert len(await case.rows("SELECT signal_id FROM growth.qscore_latest WHERE user_id = $1")) == 2


async def test_session_is_kept_once(case: Case) -> None:
    """The service's own id makes it the same session."""
    for event in (case.event("10:00"), case.event("10:00"), case.event("10:00", session="s2")):
        await service_session(case.context, event)
    statement = "SELECT external_id FROM growth.mission_service_sessions WHERE mission_instance_id = $1 ORDER BY 1"
    assert await case.rows(statement) == [(f"{case.name}-s1",), (f"{case.name}-s2",)]


async def test_stage_is_patched_deterministically(case: Case) -> None:
    """However often and however many at once: the same progress, and one suggestion."""
    await open_mission(case.pool, case.name, "interview", case.name)
    event = case.event("10:00", {"clarity": 82, "depth": 64})
    stages = await asyncio.gather(*(mission_stage(case.context, event) for _ in range(8)))
    assert {(stage.progress, stage.suggestion) for stage in stages} == {(25, "Practise depth")}
    await asyncio.gather(*(complete_stage(case.pool, case.name, stage, "-") for stage in ("plan", "practice", "offer")))
    assert await case.rows("SELECT progress FROM growth.mission_instances WHERE id = $1") == [(100,)]
    found = await case.rows("SELECT suggestion FROM growth.mission_stages WHERE mission_instance_id = $1")
    assert sorted(found) == [("-",), ("-",), ("-",), ("Practise depth",)]


async def test_stage_of_no_mission_is_terminal(case: Case) -> None:
    """It says what to do, and writes nothing."""
    with pytest.raises(Terminal, match=f"no mission instance '{case.name}': start the mission"):
        await mission_stage(case.context, case.event("10:00"))
    assert await case.rows("SELECT 1 FROM growth.mission_stages WHERE mission_instance_id = $1") == []


async def test_artifact_is_kept_once(case: Case) -> None:
    """The first content stays, with the time at which it was written."""
    statement = "SELECT external_id, created_at FROM growth.artifacts WHERE mission_instance_id = $1"
    await artifact(case.context, case.event("10:00"))
    first = await case.rows(statement)
    await artifact(case.context, case.event("11:00", {"a": 2}))
    assert (len(first), await case.rows(statement)) == (1, first)


@pytest.mark.parametrize("projector", [qscore, service_session, mission_stage, artifact])
async def test_missing_database_is_told(case: Case, projector: Module[Given, Any]) -> None:
    """Without its variable a projector is a dead letter that names it."""
    case.context.resource.return_value = GrowthDatabase(None)
    with pytest.raises(Terminal, match="set GROWTH_DATABASE_URL") as caught:
        await projector(case.context, case.event("10:00"))
    assert caught.value.category is Category.MISSING_CONFIG
