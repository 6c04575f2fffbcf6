"""Programs that tests start and end."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE = 20.0


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def start(
    command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> asyncio.subprocess.Process:
    """Start a program that writes to a log file."""
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *command,
            env=environment or os.environ,
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a program, politely first."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), PATIENCE)
    except TimeoutError:
        process.kill()
        await process.wait()
