"""The running example: its services, a worker, bridges on the stream `grow.events`, and a look at what they did."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import SecretStr
from redis.asyncio import Redis

from redrive import IdempotencyKey, Redrive, RunStatus, RunView
from redrive.bridges.events.replays import EventReplays, make_replays
from redrive.bridges.events.settings import EventSettings
from redrive.connection import connect_temporal
from redrive.dead_letters import LetterFilter, LetterId
from redrive.errors import RedriveError
from redrive.events import event_id_for
from redrive.examples.growth.database import GrowthDatabase, Pool
from redrive.examples.growth.services.running import Services, running_services
from redrive.modules import load_modules
from redrive.postgres.database import Database
from redrive.processes.redis_bridge import redis_bridge
from redrive.settings import ServiceSettings, Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.dead_letters.lists import list_letters
from redrive.store.dead_letters.models import LetterRow
from redrive.store.events.dead import DeadEvent, DeadEventFilter, list_dead_events
from redrive.store.events.records import EventFilter, EventRow, list_events, projections_of
from redrive.worker import running_worker

T = TypeVar("T")

MODULES: Final = "redrive.examples.growth.pipelines"
STREAM: Final = "grow.events"
TENANT: Final = "growth"
TASK_QUEUE: Final = "redrive-growth"
_TIMEOUT: Final = 45.0
_INTERVAL: Final = 0.05


async def until(ask: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Return the first answer that is true, or raise that there was none."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _TIMEOUT
    while True:
        found = await ask()
        if found:
            return found
        if loop.time() > deadline:
            raise RedriveError(f"{what}: it did not happen within {_TIMEOUT:g} s")
        await asyncio.sleep(_INTERVAL)


@dataclass(frozen=True)
class Candidate:
    """A user with a mission of theirs."""

    user: str
    mission_instance_id: str

    @classmethod
    def new(cls) -> "Candidate":
        """Return one that nobody has met."""
        number = uuid.uuid4().hex[:10]
        return cls(f"user_{number}", f"instance_{number}")

    @property
    def mission(self) -> dict[str, Any]:
        """The payload of their mission."""
        return {
            "user": self.user,
            "mission_instance_id": self.mission_instance_id,
            "goal": "pass the interview of a bank",
        }

    @property
    def labels(self) -> dict[str, str]:
        """What support searches by."""
        return {
            "actor_type": "workflow-run",
            "actor_key": self.user,
            "mission_id": "interview",
            "mission_instance_id": self.mission_instance_id,
            "stage_id": "interview",
        }

    def key(self, domain: str, operation: str) -> str:
        """Return an idempotency key of theirs."""
        return IdempotencyKey.build(domain, self.user, self.mission_instance_id, operation, "v1")

    def completed(self, **scores: int) -> dict[str, Any]:
        """Return the event of their interview, as the interview service writes it."""
        payload = {
            "user_id": self.user,
            "mission_instance_id": self.mission_instance_id,
            "session_id": f"session_{self.mission_instance_id}",
            "completed_at": datetime(2026, 6, 5, tzinfo=UTC).isoformat(),
            "scores": scores,
            "report": "Clear answers.",
        }
        return {
            "dedupeKey": self.key("event", "interview:completed"),
            "type": "interview.completed",
            "source": "interview-service",
            "userId": self.user,
            "payload": payload,
        }


@dataclass(frozen=True)
class GrowthSystem:
    """All of it, running."""

    settings: Settings
    events: EventSettings
    services: Services
    redrive: Redrive
    database: Database
    tables: Pool
    redis: Any
    replays: EventReplays
    owner_url: str

    async def start(
        self, pipeline: str, candidate: Candidate, payload: dict[str, Any], *, key: str | None = None
    ) -> str:
        """Start a run for a candidate, with their labels, and return its id."""
        started = await self.redrive.start(
            pipeline, payload, key=key, tenant=TENANT, user_id=candidate.user, labels=candidate.labels
        )
        return started.run_id

    async def settled(self, run_id: str) -> RunView:
        """Wait until a run has ended, or waits for an operator."""

        async def found() -> RunView | None:
            view = await self.redrive.status(run_id)
            return view if view.status.closed or view.status is RunStatus.DLQ_PENDING else None

        return await until(found, f"run {run_id}")

    async def letters(self, candidate: Candidate) -> list[LetterRow]:
        """Return the dead letters of a candidate's mission, by its label."""
        label = f"mission_instance_id={candidate.mission_instance_id}"
        page = await list_letters(await self.database.pool(), LetterFilter(tenant=TENANT, label=label))
        return page.rows

    async def replay(self, run_id: str, step: str, reason: str) -> RunView:
        """Replay a dead letter, as soon as it can be, and wait for the run."""
        letter = LetterId(tenant=TENANT, run_id=run_id, step=step)

        async def accepted() -> bool:
            return (await self.redrive.dead_letters.replay(letter, requested_by="ops", reason=reason)).accepted

        await until(accepted, f"replay of {step}")
        return await self.settled(run_id)

    async def emit(self, event: dict[str, Any]) -> str:
        """Put an event on the stream and return the id of its entry."""
        entry: str = await self.redis.xadd(STREAM, {"event": json.dumps(event)})
        return entry

    async def is_held(self, entry: str) -> bool:
        """Tell whether an entry was delivered to a bridge and is not acknowledged."""
        return bool(await self.redis.xpending_range(STREAM, self.events.group, min=entry, max=entry, count=1))

    async def is_acknowledged(self, entry: str) -> bool:
        """Tell whether an entry was delivered and is acknowledged."""
        (group,) = [each for each in await self.redis.xinfo_groups(STREAM) if each["name"] == self.events.group]
        delivered = _order(group["last-delivered-id"]) >= _order(entry)
        return delivered and not await self.is_held(entry)

    async def acknowledged(self, entries: Iterable[str]) -> None:
        """Wait until all of these are."""
        for entry in entries:
            await until(partial(self.is_acknowledged, entry), f"acknowledgement of {entry}")

    async def dead_entries(self, entry: str) -> int:
        """Return how often an entry is on the stream of dead ones."""
        found = await self.redis.xrevrange(f"{STREAM}.dlq", count=1000)
        return sum(fields["originId"] == entry for _, fields in found)

    async def dead_event(self, entry: str) -> DeadEvent | None:
        """Return the record of an entry that could not become a run."""
        page = await list_dead_events(await self.database.pool(), DeadEventFilter(source_stream=STREAM), 1000)
        return next((row for row in page.rows if row.source_message_id == entry), None)

    async def stored(self, candidate: Candidate) -> list[EventRow]:
        """Return the stored events of a candidate's interview."""
        key = candidate.key("event", "interview:completed")
        page = await list_events(await self.database.pool(), EventFilter(tenant=TENANT, dedupe_key=key))
        return page.rows

    async def projections(self, candidate: Candidate) -> dict[str, str]:
        """Return the status of each projector of a candidate's event."""
        event_id = event_id_for(TENANT, candidate.key("event", "interview:completed"))
        rows = await projections_of(await self.database.pool(), TENANT, event_id)
        return {row.projector: row.status.value for row in rows}

    async def projected(self, candidate: Candidate) -> dict[str, str]:
        """Wait until all projectors of a candidate's event have a record, or one of them has failed."""

        async def found() -> dict[str, str] | None:
            known = await self.projections(candidate)
            return known if len(known) == 4 or "failed" in known.values() else None

        return await until(found, "projections")

    async def state(self, candidate: Candidate) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row that the platform has of a candidate, with the times at which rows were written."""
        where = {
            "mission_instances": ("id", candidate.mission_instance_id),
            "mission_stages": ("mission_instance_id", candidate.mission_instance_id),
            "qscore_latest": ("user_id", candidate.user),
            "mission_service_sessions": ("mission_instance_id", candidate.mission_instance_id),
            "artifacts": ("mission_instance_id", candidate.mission_instance_id),
        }
        return {
            table: [
                tuple(row)
                for row in await self.tables.fetch(f"SELECT * FROM growth.{table} WHERE {column} = $1", value)  # noqa: S608 - the names above
            ]
            for table, (column, value) in where.items()
        }

    @contextlib.asynccontextmanager
    async def bridge(self) -> AsyncIterator[None]:
        """Run one more bridge for the length of a block."""
        async with redis_bridge(self.settings, self.events) as bridge:
            running = asyncio.create_task(bridge.run())
            try:
                yield
            finally:
                bridge.stop()
                await running


def _order(entry: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry.split("-"))


@contextlib.asynccontextmanager
async def running_system(info: StackInfo, redis_url: str, growth_url: str) -> AsyncIterator[GrowthSystem]:
    """Run services, a worker and a bridge on a stack. The worker reads GROWTH_DATABASE_URL by itself."""
    load_modules([MODULES])
    events = EventSettings(
        redis_url=SecretStr(redis_url),
        stream=STREAM,
        tenant=TENANT,
        labels={"mission_instance_id": "mission_instance_id", "actor_key": "user_id"},
    )
    redis = Redis.from_url(redis_url, protocol=2, decode_responses=True)
    tables = GrowthDatabase(growth_url)
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(redis.aclose)
        opened.push_async_callback(tables.close)
        services = await opened.enter_async_context(running_services())
        settings = _settings(info, services)
        database = await opened.enter_async_context(Database(info.database_url.get_secret_value()))
        await opened.enter_async_context(running_worker(settings))
        redrive = await opened.enter_async_context(await Redrive.connect(settings))
        replays = make_replays(await connect_temporal(settings), redrive, database, settings, events)
        owner = info.owner_url or info.database_url
        pool = await tables.pool()
        system = GrowthSystem(
            settings, events, services, redrive, database, pool, redis, replays, owner.get_secret_value()
        )
        await opened.enter_async_context(system.bridge())
        yield system


def _settings(info: StackInfo, services: Services) -> Settings:
    return Settings(
        temporal_address=info.temporal_address,
        temporal_namespace=info.namespace,
        database_url=info.database_url,
        task_queue=TASK_QUEUE,
        modules=(MODULES,),
        services={name: ServiceSettings.model_validate(values) for name, values in services.settings.items()},
    )
