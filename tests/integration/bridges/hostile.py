"""A bridge process under hostile messages: it must stay alive, small, and take what comes behind them."""

import asyncio
import contextlib
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from tests.conftest import eventually
from tests.integration.cli.command import CommandLine

MIB = 1024 * 1024
# A bridge with its libraries has about 150 MiB. What it may hold at once is far below the rest.
MOST_MEMORY = 900 * MIB
# What the system refuses beyond it. It is for the machine's sake: a bridge that gets there has failed.
_CEILING = 6 * 1024 * MIB


class Watched:
    """A process, and the most memory that it was seen with."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._seen = psutil.Process(process.pid)
        self.most = 0

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and self._seen.is_running()

    async def watch(self) -> None:
        """Look at its memory while it lives."""
        with contextlib.suppress(psutil.NoSuchProcess):
            while True:
                self.most = max(self.most, self._seen.memory_info().rss)
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def watched_bridge(command: CommandLine, *words: str) -> AsyncIterator[Watched]:
    """Run `redrive bridge …` while the block lasts, and look at it; it has to be the same process at the end."""
    ready = Path(command.directory) / "ready"
    ready.unlink(missing_ok=True)
    process = await command.start("bridge", *words, REDRIVE_READY_FILE=str(ready))
    draining = asyncio.create_task(process.communicate())
    psutil.Process(process.pid).rlimit(psutil.RLIMIT_DATA, (_CEILING, _CEILING))
    watched = Watched(process)
    watching = asyncio.create_task(watched.watch())
    try:
        await eventually(lambda: _exists(ready), within=90)
        yield watched
        assert watched.is_alive
    finally:
        watching.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        _, log = await draining
    assert process.returncode == 0, log.decode()[-2000:]
    assert watched.most < MOST_MEMORY, f"{watched.most / MIB:.0f} MiB"


async def _exists(path: Path) -> bool:
    return path.exists()
