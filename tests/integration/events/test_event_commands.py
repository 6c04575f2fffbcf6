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

from redrive.postgres.database import Database
from redrive.postgres.tenancy import transaction
from redrive.starter.stack.state import StackInfo
from redrive.store.events.records import EventFilter, list_events
from redrive.store.messages.dead import put_dead
from redrive.store.messages.retry_queue import depth
from tests.conftest import eventually
from tests.integration.cli.command import CommandLine
from tests.integration.events.valkey import Valkey
from tests.integration.store.retries import new_dead

MODULES = "tests.integration.events.file_projectors"
GROUP = "redrive"
MOST = 500


class AppState:
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

    async def is_done(self) -> bool:
        """Tell whether every entry was delivered and acknowledged."""
        (group,) = await self._redis.xinfo_groups(self.stream)
        newer = await self._redis.xrange(self.stream, f"({group['last-delivered-id']}")
        return not newer and group["pending"] == 0

    async def holds(self, pid: int) -> bool:
        """Tell whether the bridge with this process id has entries that it has not acknowledged."""
        consumers = await self._redis.xinfo_consumers(self.stream, GROUP)
        return any(f"-{pid}-" in consumer["name"] and consumer["pending"] for consumer in consumers)

    async def events(self, *words: str) -> Any:
        """Run `redrive events … --json` and return what it printed."""
        said = await self.command("events", *words, "--json")
        assert said.code == 0, said.err
        return said.document

    async def failed(self) -> list[str]:
        """Return the ids of events with a failed projector. From the database: a command takes a second."""
        async with Database(self.command.variables["DATABASE_URL"], max_size=1) as database:
            page = await list_events(await database.pool(), EventFilter(tenant=self.tenant, failed=True), 100)
        return [row.id for row in page.rows]

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
        await eventually(lambda: _exists(directory / "worker"), within=90)
        yield command
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.send_signal(signal.SIGTERM)
        await draining


async def _bridge(command: CommandLine, ready: Path) -> Process:
    """Start a bridge, and wait until it takes entries."""
    process = await command.start("bridge", "redis", REDRIVE_READY_FILE=str(ready))
    await eventually(lambda: _exists(ready), within=90)
    return process


@pytest.fixture(scope="module", autouse=True)
async def bridge(command: CommandLine) -> AsyncIterator[None]:
    """A bridge process that lives as long as the tests of this file, and has nothing to complain of."""
    process = await _bridge(command, command.directory / "bridge")
    draining = asyncio.create_task(process.communicate())
    yield
    process.send_signal(signal.SIGTERM)
    _, log = await draining
    assert process.returncode == 0
    told = [json.loads(line) for line in log.splitlines()]
    assert [line for line in told if line["level"] == "error"] == []


@pytest.fixture
def app_state(command: CommandLine, valkey: Valkey, tmp_path: Path) -> AppState:
    return AppState(command, valkey, command.variables["REDRIVE_EVENTS_STREAM"], tmp_path)


async def test_killed_bridge_loses_nothing_and_projects_nothing_twice(app_state: AppState, tmp_path: Path) -> None:
    """Two bridges share events, each sent twice; one is killed while it holds some. All are projected once."""
    victim = await _bridge(app_state.command, tmp_path / "victim")
    count = await _send_and_kill(app_state, victim)
    await eventually(app_state.is_done, within=90)
    await eventually(lambda: _projected(app_state, count), within=90)
    assert app_state.lines("count-visits") == app_state.lines("greet-visitor") == list(range(count))
    document = await app_state.events("list", "--tenant", app_state.tenant, "--limit", "1000")
    assert len(document["events"]) == count


async def _send_and_kill(app_state: AppState, victim: Process) -> int:
    """Send events, each twice, until the victim is caught with some that it holds; return how many were sent."""
    for n in range(MOST):
        await app_state.emit(f"visit:{n}", n=n)
        await app_state.emit(f"visit:{n}", n=n)
        if n % 10 == 9:
            # Stopped, it cannot let go of what it is seen to hold.
            victim.send_signal(signal.SIGSTOP)
            if await app_state.holds(victim.pid):
                victim.send_signal(signal.SIGKILL)
                await victim.communicate()
                return n + 1
            victim.send_signal(signal.SIGCONT)
    pytest.fail(f"after {MOST} events the bridge was never seen to hold one")


async def _projected(app_state: AppState, count: int) -> bool:
    return len(app_state.lines("greet-visitor")) >= count


async def test_failed_projectors_are_replayed_by_the_replay_script(app_state: AppState) -> None:
    """Break a service, see its projector fail; mend it, replay all that failed, see the projections; then one alone."""
    (app_state.folder / "count-visits.broken").touch()
    for n in range(3):
        await app_state.emit(f"broken:{n}", n=n, password="hunter2")
    failed = await eventually(lambda: _failed(app_state, 3), within=90)
    (app_state.folder / "count-visits.broken").unlink()
    answer = await app_state.events(
        "replay", "--status", "failed", "--tenant", app_state.tenant, "--limit", "100", "--yes"
    )
    assert (answer["accepted"], answer["refused"]) == (3, 0)
    await eventually(lambda: _projected(app_state, 3), within=90)
    one = failed[0]
    shown = await app_state.command(
        "events", "replay", "--event-id", one, "--projectors", "greet-visitor", "--reason", "again", "--yes", "--wait"
    )
    assert shown.code == 0, shown.err
    assert "greet-visitor" in shown.out
    assert len(app_state.lines("greet-visitor")) == 4
    assert len(app_state.lines("count-visits")) == 3
    story = (await app_state.command("events", "show", one)).out
    assert story.count("succeeded") == 2
    assert "hunter2" not in story


async def _failed(app_state: AppState, count: int) -> list[str] | None:
    ids = await app_state.failed()
    return ids if len(ids) == count else None


async def test_a_dead_message_is_replayed_by_the_replay_script(app_state: AppState) -> None:
    """The id of a message of RabbitMQ goes through the same door: planned, ordered, and then due."""
    message = new_dead()
    async with Database(app_state.command.variables["DATABASE_URL"], max_size=1) as database:
        async with transaction(await database.pool(), app_state.tenant) as connection:
            await put_dead(connection, app_state.tenant, "retry.scheduled", [message])
        chosen = ("replay", "--dlq", "--id", f"message-{message.message_id}", "--tenant", app_state.tenant)
        planned = await app_state.events(*chosen, "--dry-run")
        assert planned["would_replay"] == [f"message-{message.message_id}"]
        assert await depth(await database.pool(), app_state.tenant) == 0
        answer = await app_state.events(*chosen, "--yes")
        assert (answer["accepted"], answer["status"]) == (True, "replaying")
        assert await depth(await database.pool(), app_state.tenant) == 1
    waits = await app_state.command("events", *chosen, "--wait", "--yes")
    assert waits.code == 2
    assert "no run to wait for" in waits.sentence


async def test_dead_events_are_listed_shown_replayed_and_discarded(app_state: AppState) -> None:
    """What cannot become a run is there for the operator: why, the message, a replay that says no, and its end."""
    lost = {"dedupeKey": "x", "type": "visit.lost", "source": "tests", "tenant": app_state.tenant}
    await app_state.put(json.dumps(lost))
    await eventually(app_state.is_done, within=90)
    document = await app_state.events("dead", "--tenant", app_state.tenant, "--status", "pending")
    (dead,) = document["dead_events"]
    assert dead["error_type"] == "UnknownPipeline"
    refused = await app_state.command("events", "replay", "--dlq", "--id", dead["id"], "--yes")
    assert refused.code == 1
    assert "visit-lost" in refused.sentence
    shown = await app_state.command("events", "show", dead["id"])
    assert "visit.lost" in shown.out
    assert "event_replay_requested" in shown.out
    given_up = await app_state.events("discard", dead["id"], "--reason", "a test", "--yes")
    assert given_up["status"] == "discarded"


async def test_owner_of_the_machine_takes_a_message_out_of_quarantine(app_state: AppState) -> None:
    """A message that names no tenant is listed apart, left out of bulk replays, and replayed once it has a tenant."""
    await app_state.put(f"no JSON, of {app_state.tenant}")
    await eventually(app_state.is_done, within=90)
    document = await app_state.events("dead", "--quarantined", "--stream", app_state.stream, "--status", "pending")
    (dead,) = document["dead_events"]
    assert dead["tenant"] == "(quarantine)"
    bulk = await app_state.events("replay", "--dlq", "--status", "pending", "--dry-run")
    assert dead["id"] not in bulk["would_replay"]
    unnamed = await app_state.command("events", "replay", "--dlq", "--id", dead["id"], "--yes")
    assert (unnamed.code, "name the tenant whose it is" in unnamed.sentence) == (1, True)
    wrong = await app_state.command("events", "replay", "--dlq", "--id", dead["id"], "--assign-to", "No Name", "--yes")
    assert "not a tenant's name" in wrong.sentence
    still = await app_state.command(
        "events", "replay", "--dlq", "--id", dead["id"], "--assign-to", app_state.tenant, "--yes"
    )
    assert "not valid JSON" in still.sentence
    mine = await app_state.events("dead", "--tenant", app_state.tenant)
    assert [row["id"] for row in mine["dead_events"]] == [dead["id"]]
