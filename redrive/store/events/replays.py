"""Runs of some of an event's projectors, by an operator's command. Recorded and audited before they start."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redrive.dead_letters import Replay
from redrive.postgres.tenancy import Pool, transaction
from redrive.postgres.text import clean
from redrive.store.audit.log import Action, Entry, EventRef, write
from redrive.store.events.records import StoredEvent

_INSERT: Final = """
    INSERT INTO event_replays (key, tenant, event_id, run_id, projectors, requested_by, reason)
    VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING key
"""


@dataclass(frozen=True)
class NewReplay:
    """A run of some projectors of an event; `key` is the run's."""

    key: str
    tenant: str
    event_id: str
    run_id: str
    projectors: Sequence[str]


async def put_start(pool: Pool, event: StoredEvent, command: Replay) -> None:
    """Record that the run of an event, which never started, is to be started."""
    async with transaction(pool, event.tenant) as connection:
        await write(connection, _entry(EventRef(event.tenant, event.id, event.run_id), command, []))


async def put_replay(pool: Pool, replay: NewReplay, command: Replay) -> None:
    """Record that projectors are to run again. The same command again changes nothing."""
    async with transaction(pool, replay.tenant) as connection:
        is_new = await connection.fetchval(
            _INSERT,
            replay.key,
            replay.tenant,
            replay.event_id,
            replay.run_id,
            list(replay.projectors),
            clean(command.requested_by),
            clean(command.reason),
        )
        if is_new is None:
            return
        about = EventRef(replay.tenant, replay.event_id, replay.run_id)
        await write(connection, _entry(about, command, list(replay.projectors)))


def _entry(about: EventRef, command: Replay, projectors: list[str]) -> Entry:
    return Entry(
        action=Action.PROJECTORS_REPLAYED,
        letter=about,
        actor=command.requested_by,
        reason=command.reason,
        request_id=command.request_id,
        after={"projectors": projectors},
    )
