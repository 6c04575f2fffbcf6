"""The `redrive` command against the session's servers and a real worker process."""

import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.connection import connect_temporal
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually, owner_url
from tests.integration.cli.command import CommandLine
from tests.integration.cli.operator import Operator
from tests.ready_programs import outer_environment, start_worker

MODULES = "examples,tests.integration.cli.modules,tests.integration.cli.trip"


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
        REDRIVE_OWNER_DATABASE_URL=owner_url(stack),
        REDRIVE_TASK_QUEUE=f"queue-{uuid.uuid4().hex[:12]}",
    )
    given = {"REDRIVE_MODULES": MODULES, "REDRIVE_READY_FILE": str(directory / "ready")}
    worker = await start_worker(outer_environment() | command.variables | given, directory / "worker.log")
    try:
        await eventually(lambda: _exists(directory / "ready"))
        yield command
    finally:
        worker.send_signal(signal.SIGTERM)
        code = await worker.wait()
    assert code == 0


@pytest.fixture
async def operator(redrive: CommandLine, stack: StackInfo, tmp_path: Path) -> Operator:
    """A tenant of its own, with runs that park."""
    settings = Settings(temporal_address=stack.temporal_address, task_queue=redrive.variables["REDRIVE_TASK_QUEUE"])
    return Operator(redrive, await connect_temporal(settings), settings.task_queue, tmp_path)


async def _exists(path: Path) -> bool:
    return path.exists()
