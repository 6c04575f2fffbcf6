"""`redrive bridge redis` and `redrive events …` as real processes, beside a real worker: the drills by hand."""

import asyncio
import contextlib
import json
import signal
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from starter.stack.state import StackInfo
from tests.conftest import eventually
from tests.integration.bridges.valkey import Valkey
from tests.integration.cli.command import CommandLine

MODULES = "tests.integration.bridges.file_projectors"
GROUP = "redrive"


class Desk:
    """The command, a stream of a file's own, and a folder of a test's own that the projectors write to."""

    def __init__(self, command: CommandLine, valkey: Valkey, stream: str, folder: Path) -> None:
        self.command = command
        self._redis = valkey.client
        self.stream = stream
        self.folder = folder
        self.tenant = f"tenant-{uuid.uuid4().hex[:12]}"

    async def emit(self, key: str, **payload: object) -> None:
        """Put an event on the stream."""
        payload = {"folder": str(self.folder), **payload}
        event = {"dedupeKey": key, "type": "visit.made", "source": "tests", "tenant": self.tenant, "payload": payload}
        await self._redis.xadd(self.stream, {"event": json.dumps(event)})

    async def put(self, body: str) -> None:
        """Put anything on the stream."""
        await self._redis.xadd(self.stream, {"event": body})

    async def bridge(self, ready: Path) -> Process:
        """Start a bridge, and wait until it takes entries."""
        process = await self.command.start("bridge", "redis", REDRIVE_READY_FILE=str(ready))
        await eventually(lambda: _exists(ready))
        return process

    async def is_done(self) -> bool:
        """Tell whether every entry was delivered and acknowledged."""
        (group,) = await self._redis.xinfo_groups(self.stream)
        newer = await self._redis.xrange(self.stream, f"({group['last-delivered-id']}")
        return not newer and group["pending"] == 0

    async def events(self, *words: str) -> Any:
        """Run `redrive events … --json` and return what it printed."""
        said = await self.command("events", *words, "--json")
        assert said.code == 0, said.err
        return said.document

    async def projectors(self, event_id: str) -> dict[str, str]:
        """Return the statuses of an event's projectors."""
        found = await self.events("show", event_id)
        return {record["projector"]: record["status"] for record in found["projectors"]}

    def lines(self, projector: str) -> list[int]:
        """Return what a projector wrote, in order."""
        path = self.folder / projector
        return sorted(int(line) for line in path.read_text().split()) if path.exists() else []


async def _exists(path: Path) -> bool:
    return path.exists()


@pytest.fixture(scope="module")
async def command(
    stack: StackInfo, valkey: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[CommandLine]:
    """The command beside a worker process, for a stream of its own."""
    directory = tmp_path_factory.mktemp("events")
    command = CommandLine(
        directory,
        TEMPORAL_ADDRESS=stack.temporal_address,
        DATABASE_URL=stack.database_url.get_secret_value(),
        REDIS_URL=valkey.url,
        REDRIVE_TASK_QUEUE=f"queue-{uuid.uuid4().hex[:12]}",
        REDRIVE_MODULES=MODULES,
        REDRIVE_EVENTS_STREAM=f"visits-{uuid.uuid4().hex[:12]}",
        REDRIVE_EVENTS_CLAIM_IDLE="PT1S",
        REDRIVE_LOG_FORMAT="json",
    )
    worker = await command.start("worker", REDRIVE_READY_FILE=str(directory / "worker"))
    draining = asyncio.create_task(worker.communicate())
    try:
        await eventually(lambda: _exists(directory / "worker"))
        yield command
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.send_signal(signal.SIGTERM)
        await draining


@pytest.fixture
def desk(command: CommandLine, valkey: Valkey, tmp_path: Path) -> Desk:
    return Desk(command, valkey, command.variables["REDRIVE_EVENTS_STREAM"], tmp_path)


async def _end(process: Process, number: signal.Signals) -> str:
    process.send_signal(number)
    _, err = await process.communicate()
    return err.decode()


async def test_killed_bridge_loses_nothing_and_projects_nothing_twice(desk: Desk, tmp_path: Path) -> None:
    """Two bridges share 150 events, each sent twice; one is killed in the middle. All are projected once."""
    first = await desk.bridge(tmp_path / "first")
    for n in range(150):
        await desk.emit(f"visit:{n}", n=n)
        await desk.emit(f"visit:{n}", n=n)
    second = await desk.bridge(tmp_path / "second")
    await eventually(lambda: _some(desk))
    await _end(first, signal.SIGKILL)
    await eventually(desk.is_done, within=60)
    await eventually(lambda: _projected(desk, 150), within=60)
    log = await _end(second, signal.SIGTERM)
    assert second.returncode == 0
    assert desk.lines("count-visits") == desk.lines("greet-visitor") == list(range(150))
    assert {json.loads(line)["level"] for line in log.splitlines()} == {"info"}
    document = await desk.events("list", "--tenant", desk.tenant, "--limit", "1000")
    assert len(document["events"]) == 150


async def _some(desk: Desk) -> bool:
    return bool(desk.lines("count-visits"))


async def _projected(desk: Desk, count: int) -> bool:
    return len(desk.lines("greet-visitor")) >= count


async def test_failed_projectors_are_replayed_by_the_replay_script(desk: Desk, tmp_path: Path) -> None:
    """Break a service, see its projector fail; mend it, replay all that failed, see the projections; then one alone."""
    (desk.folder / "count-visits.broken").touch()
    bridge = await desk.bridge(tmp_path / "ready")
    for n in range(3):
        await desk.emit(f"broken:{n}", n=n, password="hunter2")
    failed = await eventually(lambda: _failed(desk, 3))
    nothing = await desk.events("replay", "--status", "failed", "--tenant", desk.tenant, "--dry-run")
    assert len(nothing["would_replay"]) == 3
    assert desk.lines("count-visits") == []
    (desk.folder / "count-visits.broken").unlink()
    answer = await desk.events("replay", "--status", "failed", "--tenant", desk.tenant, "--limit", "100", "--yes")
    assert (answer["accepted"], answer["refused"]) == (3, 0)
    await eventually(lambda: _projected(desk, 3))
    one = failed[0]
    shown = await desk.command(
        "events", "replay", "--event-id", one, "--projectors", "greet-visitor", "--reason", "again", "--yes", "--wait"
    )
    assert shown.code == 0, shown.err
    assert "greet-visitor" in shown.out
    assert len(desk.lines("greet-visitor")) == 4
    assert len(desk.lines("count-visits")) == 3
    assert await desk.projectors(one) == {"count-visits": "succeeded", "greet-visitor": "succeeded"}
    assert "hunter2" not in (await desk.command("events", "show", one)).out
    await _end(bridge, signal.SIGTERM)


async def _failed(desk: Desk, count: int) -> list[str] | None:
    document = await desk.events("list", "--failed", "--tenant", desk.tenant)
    ids = [event["id"] for event in document["events"]]
    return ids if len(ids) == count else None


async def test_dead_events_are_listed_shown_replayed_and_discarded(desk: Desk, tmp_path: Path) -> None:
    """What cannot become a run is there for the operator: why, the message, a replay that says no, and the end of it."""
    bridge = await desk.bridge(tmp_path / "ready")
    await desk.put('{"dedupeKey": "x", "type": "visit.lost", "source": "tests", "tenant": "%s"}' % desk.tenant)
    await eventually(desk.is_done)
    document = await desk.events("dead", "--tenant", desk.tenant, "--status", "pending")
    (dead,) = document["dead_events"]
    assert dead["error_type"] == "UnknownPipeline"
    refused = await desk.command("events", "replay", "--dlq", "--id", dead["id"], "--yes")
    assert refused.code == 1
    assert "visit-lost" in refused.sentence
    shown = await desk.command("events", "show", dead["id"])
    assert "visit.lost" in shown.out
    assert "event_replay_requested" in shown.out
    given_up = await desk.events("discard", dead["id"], "--reason", "a test", "--yes")
    assert given_up["status"] == "discarded"
    assert (await desk.events("dead", "--tenant", desk.tenant, "--status", "pending"))["dead_events"] == []
    await _end(bridge, signal.SIGTERM)
