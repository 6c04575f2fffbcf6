"""Entries that are made to kill whoever reads them: each is filed, once, and the event behind them is taken."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from redrive.bridges.events.settings import KEPT
from redrive.postgres.database import Database
from redrive.postgres.tenancy import QUARANTINE
from redrive.starter.stack.state import StackInfo
from redrive.store.events.dead import DeadEvent, DeadEventFilter, list_dead_events, message_of
from redrive.store.events.records import EventFilter, list_events
from tests.conftest import eventually
from tests.integration.bridges.hostile import MIB, watched_bridge
from tests.integration.cli.command import CommandLine
from tests.integration.events.valkey import Valkey

GROUP = "redrive"
LONG_KEY = json.dumps({"k" * 100_000: [""] * 300_000}, separators=(",", ":")).encode()


def envelope(**fields: Any) -> dict[str, Any]:
    return {"dedupeKey": uuid.uuid4().hex, "type": "visit.made", "source": "tests", **fields}


def inside(payload: bytes, tenant: str) -> bytes:
    """An event whose payload is this text of JSON."""
    head = json.dumps(envelope(tenant=tenant))[:-1].encode()
    return head + b',"payload":' + payload + b"}"


def bodies(tenant: str) -> dict[str, bytes]:
    """Events that must not be taken, by what is wrong with them."""
    return {
        "long key, many elements": LONG_KEY,
        "the same in a payload": inside(LONG_KEY, tenant)[: MIB // 2],
        "20 MiB": inside(json.dumps({"x": "y" * 20 * MIB}).encode(), tenant),
        "deep list": b"[" * 500_000,
        "deep object": b'{"a":' * 200_000,
        "deep payload": inside(b"[" * 100_000 + b"]" * 100_000, tenant),
        "quotes": b'"' * MIB,
        "backslashes": b'{"a":"' + b"\\" * (MIB - 100),
        "long number": inside(b'{"n":' + b"9" * 900_000 + b"}", tenant),
        "not a number": inside(b'{"n": NaN}', tenant),
        "lone surrogate": inside(b'{"n": "\\ud800"}', tenant),
        "NUL": inside(b'{"n": "\\u0000"}', tenant),
        "not UTF-8": b"\xff" * MIB,
        "empty": b"",
        "no type": json.dumps(
            {"dedupeKey": "k", "tenant": tenant, "payload": {"card": "of this tenant alone"}}
        ).encode(),
        "cut": inside(b'{"secret": "of this tenant alone"', tenant)[:-1],
        "tenant in the payload": b'{"payload": {"tenant": "default"}, "type": ',
        "bad tenant": json.dumps(envelope(tenant="../default")).encode(),
    }


class Lab:
    """A stream of a test's own, and what is recorded of it."""

    def __init__(self, command: CommandLine, valkey: Valkey, database: Database, stream: str) -> None:
        self.command = command
        self.redis = valkey.client
        self.database = database
        self.stream = stream
        self.tenant = f"tenant-{uuid.uuid4().hex[:12]}"

    async def put(self, fields: dict[str, bytes | str]) -> str:
        entry: str = await self.redis.xadd(self.stream, fields)
        return entry

    async def is_done(self) -> bool:
        (group,) = await self.redis.xinfo_groups(self.stream)
        newer = await self.redis.xrange(self.stream, f"({group['last-delivered-id']}", count=1)
        return not newer and group["pending"] == 0

    async def dead(self) -> dict[str, DeadEvent]:
        chosen = DeadEventFilter(source_stream=self.stream)
        page = await list_dead_events(await self.database.pool(), chosen, 1000)
        return {row.source_message_id: row for row in page.rows}

    async def taken(self) -> list[str]:
        page = await list_events(await self.database.pool(), EventFilter(tenant=self.tenant))
        return [row.dedupe_key for row in page.rows]


@pytest.fixture
async def lab(stack: StackInfo, valkey: Valkey, tmp_path: Path) -> Any:
    stream = f"hostile-{uuid.uuid4().hex[:12]}"
    command = CommandLine(
        tmp_path,
        TEMPORAL_ADDRESS=stack.temporal_address,
        DATABASE_URL=stack.database_url.get_secret_value(),
        REDIS_URL=valkey.url,
        REDRIVE_TASK_QUEUE=f"queue-{uuid.uuid4().hex[:12]}",
        REDRIVE_MODULES="tests.integration.events.file_projectors",
        REDRIVE_EVENTS_STREAM=stream,
        # Longer than a busy machine takes for the worst entry: one that is claimed again is not fetched whole.
        REDRIVE_EVENTS_CLAIM_IDLE="PT20S",
        REDRIVE_LOG_FORMAT="json",
    )
    async with Database(stack.database_url.get_secret_value(), max_size=2) as database:
        yield Lab(command, valkey, database, stream)


async def good(lab: Lab) -> str:
    """Put an event on the stream that can be taken, and return its key."""
    event = envelope(tenant=lab.tenant, payload={"folder": "."})
    await lab.put({"event": json.dumps(event)})
    return str(event["dedupeKey"])


async def test_hostile_entries_are_filed_and_the_bridge_lives(lab: Lab) -> None:
    """Twice each, with an entry of two hundred thousand fields: one process, little memory, and the good one behind."""
    made = bodies(lab.tenant)
    async with watched_bridge(lab.command, "redis"):
        ids = {await lab.put({"event": body}): name for _ in range(2) for name, body in made.items()}
        many = await lab.put({f"field-{n}": "x" * 8 for n in range(200_000)})
        wide = await lab.put({"other": b"y" * 8 * MIB, "tenant": lab.tenant})
        key = await good(lab)
        await eventually(lambda: _taken(lab, key), within=120)
        await eventually(lab.is_done, within=120)
    dead = await lab.dead()
    assert set(dead) == {*ids, many, wide}
    assert await lab.taken() == [key]
    owners = {ids[entry]: row.tenant for entry, row in dead.items() if entry in ids}
    named = {"20 MiB", "deep payload", "long number", "not a number", "lone surrogate", "NUL", "no type", "cut"}
    assert {name for name, owner in owners.items() if owner == lab.tenant} == named | {"the same in a payload"}
    assert {owner for name, owner in owners.items() if name not in named | {"the same in a payload"}} == {QUARANTINE}
    (large,) = [row for entry, row in dead.items() if ids.get(entry) == "20 MiB"][:1]
    assert large.full_size == len(made["20 MiB"])
    assert len(await message_of(await lab.database.pool(), large)) == KEPT
    assert "the limit is" in large.error
    assert (dead[many].tenant, dead[wide].tenant) == (QUARANTINE, lab.tenant)
    assert (dead[wide].full_size or 0) > 8 * MIB


async def _taken(lab: Lab, key: str) -> bool:
    return key in await lab.taken()


async def test_entry_that_killed_its_consumers_is_filed_unread(lab: Lab) -> None:
    """Its deliveries are used up: it is neither parsed nor fetched whole, and what comes behind it is taken."""
    await lab.redis.xgroup_create(lab.stream, GROUP, id="0", mkstream=True)
    killer = await lab.put({"event": LONG_KEY, "tenant": lab.tenant})
    large = await lab.put({"event": b"z" * 8 * MIB})
    await lab.redis.xreadgroup(GROUP, "dead", {lab.stream: ">"}, count=10)
    await lab.redis.xclaim(lab.stream, GROUP, "dead", 0, [killer, large], idle=60_000, retrycount=9)
    async with watched_bridge(lab.command, "redis"):
        key = await good(lab)
        await eventually(lambda: _taken(lab, key), within=120)
        await eventually(lab.is_done, within=120)
    dead = await lab.dead()
    assert {row.error.partition(":")[0] for row in dead.values()} == {"delivered 9 times and never made safe"}
    assert (dead[killer].tenant, dead[large].tenant) == (lab.tenant, QUARANTINE)
    assert await message_of(await lab.database.pool(), dead[killer]) == LONG_KEY
    assert dead[large].full_size == 8 * MIB
