"""One Redis stream as a bridge uses it: a consumer group, entries, and the stream of dead ones. Knows no policy."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self, TypeAlias

from pydantic_core import to_json
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

FIELD: Final = b"event"
TRACE_FIELD: Final = b"traceparent"
DEAD: Final = ".dlq"
# How long a dead message is remembered as put, so that whoever tries again does not put it twice.
_REMEMBERED: Final = timedelta(days=1)
_PUT_ONCE: Final = """
    if redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[1]) then
        return redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
    end
    return false
"""
_Fields: TypeAlias = dict[bytes, bytes]


@dataclass(frozen=True)
class Entry:
    """An entry of the stream, and how often it was delivered."""

    id: str
    body: bytes
    deliveries: int
    carrier: dict[str, str]


class EventStream:
    """The consumer group of a stream, as one of its consumers."""

    def __init__(self, client: "Redis", name: str, *, group: str, consumer: str) -> None:
        # As Any: redis-py types each method for the blocking client, too.
        self._redis: Any = client
        self.name = name
        self._group = group
        self._consumer = consumer

    @classmethod
    def connect(cls, url: str, name: str, *, group: str, consumer: str) -> Self:
        """Return a stream of the server at this address. Nothing is sent yet, and nothing is ever tried twice here."""
        client = Redis.from_url(url, retry=Retry(NoBackoff(), 0), client_name="redrive", protocol=2)
        return cls(client, name, group=group, consumer=consumer)

    @property
    def dead(self) -> str:
        """The stream of entries that could not become a run."""
        return self.name + DEAD

    async def make_group(self) -> bool:
        """Make the consumer group if there is none, and tell whether there was none. It begins with the first entry."""
        try:
            await self._redis.xgroup_create(self.name, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" in str(error):
                return False
            raise
        return True

    async def read(self, count: int, wait: timedelta) -> list[Entry]:
        """Take up to `count` entries that nobody has taken, waiting a while for the first."""
        answer = await self._redis.xreadgroup(
            self._group,
            self._consumer,
            {self.name: ">"},
            count=count,
            block=round(wait.total_seconds() * 1000),
        )
        entries = answer[0][1] if answer else []
        return [Entry(entry_id.decode(), _body(fields), 1, _carrier(fields)) for entry_id, fields in entries]

    async def claim(self, count: int, idle: timedelta) -> list[Entry]:
        """Take over up to `count` entries that a consumer has held for too long, in one look through them."""
        start, entries = b"0-0", list[tuple[bytes, _Fields]]()
        while len(entries) < count:
            start, found, *_ = await self._redis.xautoclaim(
                self.name, self._group, self._consumer, _ms(idle), start, count=count - len(entries)
            )
            entries.extend(found)
            if start == b"0-0":
                break
        return [
            Entry(entry_id.decode(), _body(fields), await self._deliveries(entry_id), _carrier(fields))
            for entry_id, fields in entries
        ]

    async def deliver_again(self, entry_id: str) -> int | None:
        """Count one more delivery of an entry that we hold, and return how many there are; None if it is gone."""
        try:
            found = await self._redis.xclaim(self.name, self._group, self._consumer, 0, [entry_id])
        except ResponseError as error:
            if not is_group_gone(error):
                raise
            return None
        return await self._deliveries(entry_id.encode()) if found else None

    async def keep(self, entry_ids: Sequence[str]) -> None:
        """Say that we still work on these entries: their idle time begins anew. That is no delivery."""
        if entry_ids:
            await self._redis.xclaim(self.name, self._group, self._consumer, 0, list(entry_ids), justid=True)

    async def acknowledge(self, entry_id: str) -> None:
        """Let go of an entry that is safe. One that the server has forgotten is no error."""
        await self._redis.xack(self.name, self._group, entry_id)

    async def put_dead(self, dead_id: str, body: bytes, headers: dict[str, str]) -> None:
        """Put a message on the stream of dead ones, once however often it is asked."""
        fields = [FIELD, body, *(part for pair in headers.items() for part in pair)]
        await self._redis.eval(
            _PUT_ONCE, 2, self.dead, f"{self.dead}:{dead_id}", round(_REMEMBERED.total_seconds()), *fields
        )

    async def leave(self) -> None:
        """Remove ourselves from the group, unless entries are still ours: those wait for another consumer."""
        pending = await self._redis.xpending_range(self.name, self._group, "-", "+", 1, self._consumer)
        if not pending:
            await self._redis.xgroup_delconsumer(self.name, self._group, self._consumer)

    async def close(self) -> None:
        """Close all connections."""
        with contextlib.suppress(OSError):
            await self._redis.aclose()

    async def _deliveries(self, entry_id: bytes) -> int:
        pending = await self._redis.xpending_range(self.name, self._group, entry_id, entry_id, 1)
        return int(pending[0]["times_delivered"]) if pending else 1


def is_group_gone(error: ResponseError) -> bool:
    """Tell whether the server has lost the consumer group, or the stream with it."""
    return "NOGROUP" in str(error)


def _body(fields: _Fields | None) -> bytes:
    """Return the event of an entry; of one without, all that there is, so that nothing is lost."""
    fields = fields or {}
    if FIELD in fields:
        return fields[FIELD]
    return to_json({_text(name): _text(value) for name, value in fields.items()})


def _carrier(fields: _Fields | None) -> dict[str, str]:
    """Return what names the trace that an entry belongs to."""
    return {_text(TRACE_FIELD): _text(fields[TRACE_FIELD])} if fields and TRACE_FIELD in fields else {}


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _ms(time: timedelta) -> int:
    return round(time.total_seconds() * 1000)
