"""Servers of `up` under accounts of their own: the real processes are looked at. Root alone can give them accounts."""

import contextlib
import os
import pwd
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import aiormq
import psutil
import pytest
from redis.asyncio import Redis
from temporalio.client import Client

from redrive.contracts import Broker
from redrive.settings import Settings
from redrive.starter.stack.placement import sheltered
from redrive.starter.stack.stack import Stack, wipe
from redrive.starter.stack.state import StateDirectory
from tests.debian import find

SERVERS = {"postgres", "temporal", "redis", "rabbitmq-names", "rabbitmq"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers under other accounts")


@contextlib.asynccontextmanager
async def _stack(state_dir: Path, shelter: Path, *without: Broker) -> AsyncIterator[Stack]:
    brokers = dict.fromkeys({Broker.REDIS, Broker.RABBITMQ} - {*without})
    async with Stack(Settings(), state_dir=state_dir, workers=0, brokers=brokers, shelter=shelter) as stack:
        yield stack


@pytest.fixture
async def directory() -> AsyncIterator[Path]:
    """A directory that every account can enter."""
    find("rabbitmq-server", "rabbitmq-server")
    with tempfile.TemporaryDirectory(prefix="redrive-test-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o711)
        yield Path(path)


def _roots(stack: Stack) -> set[str]:
    """Return the servers of which any process runs as root."""
    found = set()
    for name in SERVERS & stack.info.children.keys():
        process = psutil.Process(stack.info.children[name])
        family = [process, *process.children(recursive=True)]
        if any(0 in each.uids() or 0 in each.gids() for each in family):
            found.add(name)
    return found


async def _keep_something(stack: Stack, mark: str) -> None:
    client = await Client.connect(stack.info.temporal_address, namespace=stack.info.namespace)
    await client.start_workflow("nobody-runs-it", id=mark, task_queue=mark)
    async with Redis.from_url(stack.info.brokers[Broker.REDIS].get_secret_value()) as redis:
        await redis.set(mark, "kept")
    connection = await aiormq.connect(stack.info.brokers[Broker.RABBITMQ].get_secret_value())
    channel = await connection.channel()
    await channel.queue_declare(mark, durable=True)
    await connection.close()


async def _is_kept(stack: Stack, mark: str) -> None:
    client = await Client.connect(stack.info.temporal_address, namespace=stack.info.namespace)
    assert (await client.get_workflow_handle(mark).describe()).id == mark
    async with Redis.from_url(stack.info.brokers[Broker.REDIS].get_secret_value()) as redis:
        assert await redis.get(mark) == b"kept"
    if Broker.RABBITMQ not in stack.info.brokers:
        return
    connection = await aiormq.connect(stack.info.brokers[Broker.RABBITMQ].get_secret_value())
    await (await connection.channel()).queue_declare(mark, passive=True)
    await connection.close()


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_no_server_runs_as_root_and_older_data_is_handed_over(directory: Path) -> None:
    """Data that root's own servers have written is read by the accounts; below a closed directory it moves once."""
    mark = f"mark-{uuid.uuid4().hex[:8]}"
    state_dir, shelter = directory / "home" / "state", directory / "shelter"
    async with _stack(state_dir, shelter) as stack:
        assert stack.info.children.keys() >= SERVERS
        assert _roots(stack) == set()
        await _keep_something(stack, mark)
    data = {name: state_dir / name for name in ("temporal", "redis", "rabbitmq")}
    nobody = pwd.getpwnam("nobody").pw_uid
    assert data["temporal"].stat().st_uid in {nobody, *_uids("temporal")}
    for path in data.values():
        assert path.stat().st_mode & 0o077 == 0
        assert path.stat().st_uid != 0
        _give_to_root(path)
    # RabbitMQ takes longer to start than all others; its data is handed over below.
    async with _stack(state_dir, shelter, Broker.RABBITMQ) as stack:
        assert _roots(stack) == set()
        await _is_kept(stack, mark)
    assert sheltered(StateDirectory(state_dir)) is None
    # PostgreSQL would have been below the shelter from the start.
    shutil.rmtree(state_dir / "postgres")
    (state_dir / "postgres.password").unlink()
    for path in data.values():
        _give_to_root(path)
    (directory / "home").chmod(0o700)
    async with _stack(state_dir, shelter) as stack:
        assert _roots(stack) == set()
        await _is_kept(stack, mark)
    place = sheltered(StateDirectory(state_dir))
    assert place
    assert {each.name for each in place.iterdir()} >= set(data)
    await wipe(state_dir)
    assert not place.exists()


def _uids(*names: str) -> set[int]:
    return {entry.pw_uid for entry in pwd.getpwall() if entry.pw_name in names}


def _give_to_root(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, 0, 0)
