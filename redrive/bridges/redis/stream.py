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

from redrive.bridges.events.settings import EVENT_LIMIT, KEPT

FIELD: Final = b"event"
TENANT_FIELD: Final = b"tenant"
TRACE_FIELD: Final = b"traceparent"
_LABEL_LIMIT: Final = 255
_FIELD_LIMIT: Final = 500
DEAD: Final = ".dlq"
# How long a dead message is remembered, so that a retry does not add it twice.
_REMEMBERED: Final = timedelta(days=1)
_PUT_ONCE: Final = """
    if redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[1]) then
        return redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
    end
    return false
"""
# An entry that was delivered before may have crashed its consumer: its excess stays on the server.
_FETCH: Final = """
    local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])
    if #found == 0 then return {0} end
    local fields, answer, room, size, has_event = found[1][2], {0}, tonumber(ARGV[2]), 0, false
    for i = 1, #fields, 2 do
        if fields[i] == 'event' then has_event, size = true, #fields[i + 1] end
    end
    for i = 1, #fields, 2 do
        local name, value = fields[i], fields[i + 1]
        local is_label = has_event and (name == 'tenant' or name == 'traceparent')
        if not has_event then size = size + #name + #value end
        if name == 'event' or is_label or (not has_event and room > 0 and #answer < 1000) then
            local kept = string.sub(value, 1, is_label and 256 or room)
            answer[#answer + 1] = string.sub(name, 1, 256)
            answer[#answer + 1] = kept
            if not is_label then room = room - #name - #value end
        end
    end
    answer[1] = size
    return answer
"""
_Fields: TypeAlias = dict[bytes, bytes]


@dataclass(frozen=True)
class Entry:
    """An entry of the stream, and how often it was delivered. If it is too large, the body is its beginning."""

    id: str
    body: bytes
    size: int
    deliveries: int
    carrier: dict[str, str]
    tenant: str | None = None

    @property
    def is_cut(self) -> bool:
        """Tell whether the body is incomplete."""
        return len(self.body) < self.size


class EventStream:
    """The consumer group of a stream, as one of its consumers."""

    def __init__(self, client: "Redis", name: str, *, group: str, consumer: str, kept: int = KEPT) -> None:
        # As Any: redis-py's types also cover the blocking client.
        self._redis: Any = client
        self.name = name
        self._group = group
        self._consumer = consumer
        self._kept = kept

    @classmethod
    def connect(cls, url: str, name: str, *, group: str, consumer: str, kept: int = KEPT) -> Self:
        """Return a stream of the server at this address. It sends nothing yet, and never retries."""
        client = Redis.from_url(url, retry=Retry(NoBackoff(), 0), client_name="redrive", protocol=2)
        return cls(client, name, group=group, consumer=consumer, kept=kept)

    @property
    def dead(self) -> str:
        """The stream of entries that could not become a run."""
        return self.name + DEAD

    async def make_group(self) -> bool:
        """Create the consumer group, from the first entry on, unless it exists; return whether it was created."""
        try:
            await self._redis.xgroup_create(self.name, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" in str(error):
                return False
            raise
        return True

    async def read(self, count: int, wait: timedelta) -> list[Entry]:
        """Take up to `count` new entries, waiting a while for the first."""
        answer = await self._redis.xreadgroup(
            self._group,
            self._consumer,
            {self.name: ">"},
            count=count,
            block=round(wait.total_seconds() * 1000),
        )
        entries = answer[0][1] if answer else []
        return [self._entry(entry_id.decode(), fields or {}, 1) for entry_id, fields in entries]

    async def claim(self, count: int, idle: timedelta) -> list[Entry]:
        """Claim up to `count` entries that a consumer has held for too long. Each is counted before it is read."""
        entries: list[Entry] = []
        for each in await self._redis.xpending_range(self.name, self._group, "-", "+", count, idle=_ms(idle)):
            deliveries = int(each["times_delivered"]) + 1
            if await self._count(each["message_id"], deliveries, idle):
                entries.append(await self._fetch(each["message_id"].decode(), deliveries))
        return entries

    async def deliver_again(self, entry_id: str) -> int | None:
        """Count one more delivery of an entry that we hold, and return the count; None if the entry is gone."""
        try:
            pending = await self._redis.xpending_range(self.name, self._group, entry_id, entry_id, 1)
            deliveries = int(pending[0]["times_delivered"]) + 1 if pending else 0
            found = deliveries and await self._count(entry_id.encode(), deliveries, timedelta(0))
        except ResponseError as error:
            if not is_group_gone(error):
                raise
            return None
        return deliveries if found else None

    async def _count(self, entry_id: bytes, deliveries: int, idle: timedelta) -> bool:
        found = await self._redis.xclaim(
            self.name, self._group, self._consumer, _ms(idle), [entry_id], retrycount=deliveries, justid=True
        )
        return bool(found)

    async def _fetch(self, entry_id: str, deliveries: int) -> Entry:
        size, *flat = await self._redis.eval(_FETCH, 1, self.name, entry_id, EVENT_LIMIT)
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        return self._entry(entry_id, fields, deliveries, size)

    def _entry(self, entry_id: str, fields: _Fields, deliveries: int, size: int | None = None) -> Entry:
        body, known = _body(fields, EVENT_LIMIT)
        size = max(known, size or 0)
        if size > EVENT_LIMIT:
            body = body[: self._kept]
        return Entry(entry_id, body, size, deliveries, _carrier(fields), _label(fields, TENANT_FIELD))

    async def keep(self, entry_ids: Sequence[str]) -> None:
        """Reset the idle time of these entries, which we still work on. That is no delivery."""
        if entry_ids:
            await self._redis.xclaim(self.name, self._group, self._consumer, 0, list(entry_ids), justid=True)

    async def acknowledge(self, entry_id: str) -> None:
        """Acknowledge an entry that is safe. One that the server has forgotten is no error."""
        await self._redis.xack(self.name, self._group, entry_id)

    async def put_dead(self, dead_id: str, body: bytes, headers: dict[str, str]) -> None:
        """Add a message to the stream of dead ones, once however often it is called."""
        fields = [FIELD, body, *(part for pair in headers.items() for part in pair)]
        await self._redis.eval(
            _PUT_ONCE, 2, self.dead, f"{self.dead}:{dead_id}", round(_REMEMBERED.total_seconds()), *fields
        )

    async def leave(self) -> None:
        """Leave the group, unless entries are still ours: those wait for another consumer."""
        pending = await self._redis.xpending_range(self.name, self._group, "-", "+", 1, self._consumer)
        if not pending:
            await self._redis.xgroup_delconsumer(self.name, self._group, self._consumer)

    async def close(self) -> None:
        """Close all connections."""
        with contextlib.suppress(OSError):
            await self._redis.aclose()


def is_group_gone(error: ResponseError) -> bool:
    """Tell whether the server has lost the consumer group, or the stream with it."""
    return "NOGROUP" in str(error)


def _body(fields: _Fields, limit: int) -> tuple[bytes, int]:
    """Return the event of an entry, and its size; without an event, the whole entry, so that nothing is lost.

    Over the limit it is the beginning only: an entry may have a million fields.
    """
    if FIELD in fields:
        return fields[FIELD], len(fields[FIELD])
    size, room, kept = 0, limit, dict[str, str]()
    for name, value in fields.items():
        size += len(name) + len(value)
        if room > 0 and len(kept) < _FIELD_LIMIT:
            kept[_text(name[:256])] = _text(value[:room])
            room -= len(name) + len(value)
    return to_json(kept), size


def _carrier(fields: _Fields) -> dict[str, str]:
    """Return the trace context of an entry."""
    trace = _label(fields, TRACE_FIELD)
    return {_text(TRACE_FIELD): trace} if trace else {}


def _label(fields: _Fields, name: bytes) -> str | None:
    """Return a short text field that an entry has besides its event."""
    value = fields.get(name)
    return _text(value) if value is not None and len(value) <= _LABEL_LIMIT else None


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _ms(time: timedelta) -> int:
    return round(time.total_seconds() * 1000)
