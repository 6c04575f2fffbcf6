"""The `redrive` command as a real process, against the session's servers and a real worker process."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from starter.stack.state import StackInfo
from tests.conftest import eventually

COMMAND = str(Path(sys.executable).with_name("redrive"))
ROOT = Path(__file__).parents[3]
_OURS = ("REDRIVE_", "TEMPORAL_", "DATABASE_URL")


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON that stdout holds, and nothing but it."""
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The refusal on stderr; fails when there is more than that, a traceback above all."""
        first, *rest = self.err.strip().splitlines()
        assert first.startswith("redrive: ")
        assert all(line.startswith("Try `") for line in rest), self.err
        return first.removeprefix("redrive: ")


class CommandLine:
    """Runs commands in a directory of their own."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self.directory = directory
        self.variables = variables

    async def start(self, *words: str, program: str = COMMAND, **variables: str) -> Process:
        """Start a command and return without waiting for it."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        return await asyncio.create_subprocess_exec(
            *(program, *words),
            cwd=self.directory,
            env=inherited | {"PYTHONPATH": str(ROOT)} | self.variables | variables,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )

    async def __call__(self, *words: str, stdin: str = "", program: str = COMMAND, **variables: str) -> Said:
        """Run a command to its end."""
        process = await self.start(*words, program=program, **variables)
        try:
            async with asyncio.timeout(40):
                out, err = await process.communicate(stdin.encode())
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        return Said(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
def bare(tmp_path: Path) -> CommandLine:
    """The command where nothing runs: every server it may look for is at a closed port."""
    return CommandLine(tmp_path, TEMPORAL_ADDRESS="127.0.0.1:1")


@pytest.fixture(scope="module")
async def redrive(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CommandLine]:
    """The command beside a worker process that knows the examples and the modules of these tests."""
    directory = tmp_path_factory.mktemp("cli")
    command = CommandLine(
        directory,
        TEMPORAL_ADDRESS=stack.temporal_address,
        DATABASE_URL=stack.database_url.get_secret_value(),
        REDRIVE_TASK_QUEUE=f"queue-{uuid.uuid4().hex[:12]}",
        REDRIVE_READY_FILE=str(directory / "ready"),
    )
    worker = await command.start("worker", "--modules", "examples,tests.integration.cli.modules")
    draining = asyncio.create_task(worker.communicate())
    try:
        await eventually(lambda: _exists(directory / "ready"))
        yield command
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.send_signal(signal.SIGTERM)
        await draining
    assert worker.returncode == 0


async def _exists(path: Path) -> bool:
    return path.exists()
