"""The README of `examples/existing_temporal_project`, run as written."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.contracts import TASK_QUEUE
from redrive.settings import Settings
from tests.conftest import WorkerFactory, eventually

EXAMPLES = Path(__file__).parents[3] / "examples"
README = EXAMPLES / "existing_temporal_project" / "README.md"


@pytest.fixture
async def shell(settings: Settings, worker: WorkerFactory, tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """The environment of a reader who has started `redrive up` and has the examples' folder in front of them."""
    (tmp_path / "existing_temporal_project").symlink_to(README.parent)
    assert settings.temporal_address
    assert settings.database_url
    async with worker(task_queue=TASK_QUEUE):
        yield os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TEMPORAL_ADDRESS": settings.temporal_address,
            "DATABASE_URL": settings.database_url.get_secret_value(),
        }


async def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a line of the README and return what it printed."""
    process = await asyncio.create_subprocess_shell(
        command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, problem = await process.communicate()
    assert process.returncode == 0, f"{command}: {problem.decode()}"
    return out.decode()


async def test_the_readme_runs_as_written(shell: dict[str, str], tmp_path: Path) -> None:
    """Each line works, the dead letter names the line that waits, and can be shown after the order has ended."""
    text = README.read_text()
    servers, failing, replaying = [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    (expected,) = re.findall(r"```text\n(.*?)\n```", text, re.DOTALL)
    worker = await asyncio.create_subprocess_exec(*servers[1].split(), cwd=tmp_path, env=shell)
    try:
        for line in failing[:-1]:
            await run(line, tmp_path, shell)

        async def listed() -> bool:
            return "dead-letter-" in await run(failing[-1], tmp_path, shell)

        await eventually(listed, within=60)
        printed = [await run(line, tmp_path, shell) for line in replaying]

        async def is_shown_as_replayed() -> bool:
            return " replayed" in (await run(replaying[0], tmp_path, shell)).splitlines()[0]

        await eventually(is_shown_as_replayed)
    finally:
        worker.kill()
        await worker.wait()
    assert re.search(r"code line +\S+workflows\.py:\d+ OrderWorkflow\.run", printed[0])
    assert printed[-1].strip() == expected
