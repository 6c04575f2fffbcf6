"""The users' worker is killed with -9 while workflows park, and while commands are carried out."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.worker import Replayer

from redrive.dead_letters import LetterStatus
from redrive.errors import Unavailable
from redrive.settings import Settings
from tests.conftest import eventually
from tests.integration.plugin import users_worker
from tests.integration.plugin.conftest import ProjectFactory
from tests.integration.plugin.lab import Project
from tests.integration.plugin.users_worker import TouchWorkflow
from tests.ready_programs import Forked, Program, outer_environment, start

USERS_WORKER = Program(
    "users_worker",
    users_worker.__name__,
    ("redrive.plugin", "redrive.plugin.plugin", "temporalio.client", "temporalio.worker"),
)
MOMENT = 0.25
STEPS = [
    f"{moment}:redrive.{name}" for name in ("report", "record_command", "outcome") for moment in ("before", "after")
]


async def start_worker(users: Project, letters: str, *moments: str) -> Forked:
    """Start the project's worker as a process."""
    words = (users.client.service_client.config.target_host, users.queue, letters, *moments)
    return await start(USERS_WORKER, words, outer_environment(), Path(os.devnull))


@contextlib.asynccontextmanager
async def worker_process(users: Project, letters: str) -> AsyncIterator[None]:
    """Run the project's worker as a process, and kill it."""
    process = await start_worker(users, letters)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def restarted_worker(users: Project, letters: str, *moments: str) -> AsyncIterator[Callable[[], None]]:
    """Run the project's worker as a process that is started again when it dies; give what kills it now."""
    current: list[Forked] = []

    async def supervise() -> None:
        while True:
            current[:] = [await start_worker(users, letters, *moments)]
            await current[0].wait()

    supervisor = asyncio.create_task(supervise())
    try:
        yield lambda: current[0].kill()  # noqa: PLW0108 - the process of that moment
    finally:
        supervisor.cancel()
        await asyncio.wait({supervisor})
        if current:
            current[0].kill()
            await current[0].wait()


async def test_a_worker_killed_at_a_step_continues_there(
    new_project: ProjectFactory, settings: Settings, tmp_path: Path
) -> None:
    """At each step of parking and of a command: one dead letter, one replay, one effect."""
    users = await new_project()
    steps = {tmp_path / f"{users.case}-{number}": step for number, step in enumerate(STEPS)}
    moments = [f"{mark}:{step}" for mark, step in steps.items()]
    async with restarted_worker(users, settings.task_queue, *moments):
        for mark, step in steps.items():
            path = Path(f"{mark}.touched")
            handle = await parked_and_replayed(users, path, mark.name)
            assert (mark.exists(), path.read_text()) == (True, "touched\n"), step
            [letter] = await users.letters(handle)
            assert (letter["cycle"], letter["replay_count"]) == (1, 1), step
            replayer = Replayer(workflows=[TouchWorkflow], plugins=[users.plugin])
            await replayer.replay_workflow(await handle.fetch_history())


async def parked_and_replayed(users: Project, path: Path, workflow_id: str) -> WorkflowHandle[Any, Any]:
    """Let a workflow park, replay it, and wait for its end."""
    Path(f"{path}.broken").touch()
    handle = await users.start(TouchWorkflow.run, str(path), id=workflow_id, task_timeout=timedelta(seconds=2))
    [letter] = await users.parked(handle, within=60)
    Path(f"{path}.broken").unlink()
    await replayed(users, letter)
    async with asyncio.timeout(60):
        assert await handle.result() == "touched"
    await users.closed(handle, LetterStatus.REPLAYED)
    return handle


async def test_a_worker_killed_while_parked_and_while_it_runs_the_activity_again(
    new_project: ProjectFactory, settings: Settings, tmp_path: Path
) -> None:
    """Parked, nothing is lost. An attempt that dies fails by its timeout: the workflow parks there once more."""
    users = await new_project()
    path, mark = tmp_path / "touched", tmp_path / users.case
    Path(f"{path}.broken").touch()
    async with restarted_worker(users, settings.task_queue, f"{mark}:before:touch") as kill:
        mark.touch()
        handle = await users.start(TouchWorkflow.run, str(path), id=users.case, task_timeout=timedelta(seconds=2))
        [letter] = await users.parked(handle, within=60)
        mark.unlink()
        kill()
        Path(f"{path}.broken").unlink()
        await replayed(users, letter)
        [letter] = await users.parked(handle, cycle=2, within=60)
        await replayed(users, letter)
        async with asyncio.timeout(60):
            assert await handle.result() == "touched"
        await users.closed(handle, LetterStatus.REPLAYED)
    assert (mark.exists(), path.read_text()) == (True, "touched\n")


async def test_a_killed_worker_loses_and_doubles_nothing(
    new_project: ProjectFactory, settings: Settings, tmp_path: Path
) -> None:
    """Killed at a moment of parking and of a command, each workflow ends, and each effect happened once."""
    users = await new_project()
    letters = settings.task_queue
    paths = [tmp_path / str(number) for number in range(6)]
    for path in paths:
        Path(f"{path}.broken").touch()
    async with worker_process(users, letters):
        first = await users.start(TouchWorkflow.run, str(paths[0]))
        await users.parked(first)
        handles = [first, *[await users.start(TouchWorkflow.run, str(path)) for path in paths[1:]]]
        await asyncio.sleep(MOMENT)
    async with worker_process(users, letters):
        found = [(await users.parked(handle))[0] for handle in handles]
        for path in paths:
            Path(f"{path}.broken").unlink()
        given = [asyncio.create_task(replayed(users, letter)) for letter in found]
        await asyncio.sleep(MOMENT)
    async with worker_process(users, letters):
        await asyncio.gather(*given)
        for handle in handles:
            # Killed within an attempt, it fails by its timeout and parks again: nobody else could know.
            await eventually(lambda handle=handle: ended(users, handle), within=60)  # type: ignore[misc]
    assert [path.read_text() for path in paths] == ["touched\n"] * len(paths)


async def replayed(users: Project, letter: dict[str, object]) -> None:
    """Replay a dead letter; a command without an answer is given again under the same id."""
    while True:
        with contextlib.suppress(Unavailable):
            answer = await users.command(letter, "replay", request_id=f"replay-{letter['cycle']}-{letter['id']}")
            assert answer.accepted, answer
            return


async def ended(users: Project, handle: object) -> bool:
    """Tell whether a workflow has ended and its dead letter is closed; replay it if it is parked once more."""
    [row] = await users.letters(handle)  # type: ignore[arg-type]
    if row["status"] == LetterStatus.PENDING and row["cycle"] > 1:
        await users.command(row, "replay", request_id=f"again-{row['cycle']}-{row['id']}")
    return bool(row["status"] == LetterStatus.REPLAYED)
