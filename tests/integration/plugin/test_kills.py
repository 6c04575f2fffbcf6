"""The users' worker is killed with -9 while workflows park, and while commands are carried out."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.dead_letters import LetterStatus
from redrive.errors import Unavailable
from redrive.settings import Settings
from tests.conftest import eventually
from tests.integration.plugin.conftest import ProjectFactory
from tests.integration.plugin.lab import Project
from tests.integration.plugin.users_worker import TouchWorkflow

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def worker_process(users: Project, letters: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the project's worker as a process, and kill it."""
    address = users.client.service_client.config.target_host
    command = [sys.executable, "-m", "tests.integration.plugin.users_worker", address, users.queue, letters]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("moment", [0.05, 0.25])
async def test_a_killed_worker_loses_and_doubles_nothing(
    new_project: ProjectFactory, settings: Settings, tmp_path: Path, moment: float
) -> None:
    """Killed at a moment of parking and of a command, each workflow ends, and each effect happened once."""
    users = await new_project()
    letters = settings.task_queue
    paths = [tmp_path / str(number) for number in range(6)]
    for path in paths:
        Path(f"{path}.broken").touch()
    with worker_process(users, letters):
        first = await users.start(TouchWorkflow.run, str(paths[0]))
        await users.parked(first)
        handles = [first, *[await users.start(TouchWorkflow.run, str(path)) for path in paths[1:]]]
        await asyncio.sleep(moment)
    with worker_process(users, letters):
        found = [(await users.parked(handle))[0] for handle in handles]
        for path in paths:
            Path(f"{path}.broken").unlink()
        given = [asyncio.create_task(replayed(users, letter)) for letter in found]
        await asyncio.sleep(moment)
    with worker_process(users, letters):
        await asyncio.gather(*given)
        for handle in handles:
            # Killed within an attempt, it fails by its timeout and parks again: nobody else could know.
            await eventually(lambda handle=handle: ended(users, handle), within=60)  # type: ignore[misc]
    assert [path.read_text() for path in paths] == ["touched\n"] * len(paths)


async def replayed(users: Project, letter: dict[str, object]) -> None:
    """Replay a dead letter; a command without an answer is given again under the same id."""
    while True:
        with contextlib.suppress(Unavailable):
            answer = await users.command(letter, "replay", request_id=f"replay-{letter['id']}")
            assert answer.accepted, answer
            return


async def ended(users: Project, handle: object) -> bool:
    """Tell whether a workflow has ended and its dead letter is closed; replay it if it is parked once more."""
    [row] = await users.letters(handle)  # type: ignore[arg-type]
    if row["status"] == LetterStatus.PENDING and row["cycle"] > 1:
        await users.command(row, "replay", request_id=f"again-{row['cycle']}-{row['id']}")
    return bool(row["status"] == LetterStatus.REPLAYED)
