"""`redrive up` as a real process tree, and a real HTTP service that counts effects."""

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Self, TypeVar

import psutil
import pytest

from redrive.errors import Unavailable
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo, find_running
from tests.conftest import pauses
from tests.ready_programs import outer_environment

T = TypeVar("T")

COMMAND = str(Path(sys.executable).with_name("redrive"))
ROOT = Path(__file__).parents[2]


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without a word about servers, and with the changes.

    The code that runs is that of this checkout, wherever the environment was set up.
    """
    return outer_environment() | changes


@contextlib.contextmanager
def working_directory() -> Iterator[Path]:
    """Make a directory that PostgreSQL's account can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="redrive-test-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o711)
        yield Path(path)


def until(ask: Callable[[], T | None], *, within: float = 30.0, what: str = "") -> T:
    """Return the first answer that is true, or fail."""
    deadline = time.monotonic() + within
    for pause in pauses():
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            break
        time.sleep(pause)
    pytest.fail(f"{what or 'it'}: still {answer!r} after {within} s")


async def insist(call: Callable[[], Awaitable[T]], *, within: float = 60.0) -> T:
    """Call again for as long as the product says that something it needs is away."""
    deadline = time.monotonic() + within
    while True:
        try:
            return await call()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


class Up:
    """One `redrive up`: started in the background, ready when the block begins, stopped when it ends."""

    def __init__(self, directory: Path, *words: str, variables: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.output = directory / f"up-{time.monotonic_ns()}.txt"
        self._words = words
        self._variables = variables or {}

    def launch(self) -> None:
        """Start it and return at once."""
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [COMMAND, "up", *self._words],
                cwd=self.directory,
                env=environment(**self._variables),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def until_it_has_children(self) -> list[psutil.Process]:
        """Wait until it is in the middle of starting."""
        return until(self.family, what="children of redrive up")

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        try:
            until(self.started, within=180, what="redrive up")
        except BaseException:
            self.process.kill()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGTERM)

    def started(self) -> StackInfo | None:
        if self.process.poll() is not None:
            pytest.fail(f"redrive up ended with {self.process.returncode}:\n{self.text}")
        return find_running(self.directory / ".redrive")

    @property
    def text(self) -> str:
        """All that it has printed."""
        return self.output.read_text()

    @property
    def info(self) -> StackInfo:
        """What it tells others."""
        info = find_running(self.directory / ".redrive")
        assert info
        return info

    @property
    def settings(self) -> Settings:
        """Settings for a client of this stack."""
        return Settings(temporal_address=self.info.temporal_address, state_dir=self.directory / ".redrive")

    def family(self) -> list[psutil.Process]:
        """Return the processes that it has started, with theirs."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code; no process may be left."""
        family = self.family()
        self.process.send_signal(number)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        _, left = psutil.wait_procs(family, timeout=15)
        assert not left, f"left behind: {left}"
        return code

    def restarted(self, name: str) -> int | None:
        """Return the process id of a child that was restarted and is ready again."""
        lines = re.findall(rf"^{name}  (\w+)  (?:pid (\d+)  )?restarts (\d+)", self.text, re.MULTILINE)
        state, pid, restarts = lines[-1]
        return int(pid) if state == "ready" and int(restarts) >= 1 else None


class Sink:
    """A service that counts what reaches it by idempotency key. `refusing` makes it refuse."""

    def __init__(self, delay: float = 0.15, refusal: str = "503 Service Unavailable", body: str = "{}") -> None:
        self.keys: dict[str, list[str]] = defaultdict(list)
        self.refusing = False
        self.refused = 0
        self.address = ""
        self._delay = delay
        self._refusal = refusal
        self._body = body

    def refusal(self, path: str) -> str | None:
        """Return the status that a request gets instead of its effect, if it is refused."""
        return self._refusal if self.refusing else None

    @property
    def arrivals(self) -> int:
        """How many effects have arrived, duplicates too."""
        return sum(len(keys) for keys in self.keys.values())

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        """Serve on a free port; `address` says where."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"http://{host}:{port}"
        async with server:
            yield self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A caller that is killed closes its connection in the middle.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await reader.readexactly(int(headers.get("content-length", 0)))
        path = request.split(" ")[1]
        status = self.refusal(path)
        if status:
            self.refused += 1
        else:
            status = "200 OK"
            self.keys[path].append(headers["idempotency-key"])
        await asyncio.sleep(self._delay)
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(self._body)}"
        writer.write(f"{head}\r\n\r\n{self._body}".encode())
        await writer.drain()
