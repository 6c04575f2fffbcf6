"""A real Valkey server of the tests' own, which may be killed."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from redrive.starter.stack.children import Supervisor
from redrive.starter.stack.ports import reserve
from redrive.starter.stack.redis import REDIS_PORT, RedisServer, find_redis
from tests.conftest import eventually


class Valkey:
    """A server that is started again when it dies, and a client of it."""

    def __init__(self, server: RedisServer, supervisor: Supervisor) -> None:
        self.url = server.url
        self._server = server
        self._supervisor = supervisor
        # As Any: redis-py types each method for the blocking client, too.
        self.client: Any = Redis.from_url(server.url, protocol=2, decode_responses=True)

    async def kill(self) -> None:
        """Kill the server and wait until another one answers."""
        pid = self._supervisor.statuses["redis"].pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: self._is_another(pid))
        await self.client.connection_pool.disconnect()

    async def _is_another(self, pid: int) -> bool:
        return self._supervisor.statuses["redis"].pid not in {pid, None} and await self._server.is_ready()


@asynccontextmanager
async def running_valkey(directory: Path) -> AsyncIterator[Valkey]:
    """Run a server while the block lasts."""
    reservation = reserve("the tests' Redis", asked=None, preferred=REDIS_PORT + 400)
    supervisor = Supervisor(directory)
    server = RedisServer(find_redis(), directory / "redis", reservation.number)
    try:
        await supervisor.start(*server.children)
        valkey = Valkey(server, supervisor)
        yield valkey
        await valkey.client.aclose()
    finally:
        await supervisor.stop()
        reservation.close()
