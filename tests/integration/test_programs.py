"""Our programs as processes of their own: how they stop, and what they say when they cannot start."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from redrive import worker as worker_program
from redrive.contracts import LABELS_ATTRIBUTE
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.starter.stack.temporal_server import TemporalServer, find_temporal
from tests.conftest import eventually

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "worker": ["worker.py"],
    "rabbitmq": ["-m", "redrive.processes.rabbitmq_bridge"],
    "worker command": ["-m", "redrive.starter.cli.main", "worker"],
    "redis": ["-m", "redrive.starter.cli.main", "bridge", "redis"],
}
# Far below what a process is given before it is killed, far above what it takes on a busy machine.
PROMPTLY = 10


@pytest.fixture
async def silent() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The address of a server that takes connections and never answers, and the event of the first."""
    asked = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


def environment(stack: StackInfo, folder: Path, temporal: str) -> dict[str, str]:
    return os.environ | {
        "TEMPORAL_ADDRESS": temporal,
        "DATABASE_URL": stack.database_url.get_secret_value(),
        "REDRIVE_STATE_DIR": str(folder),
        "REDRIVE_LOG_FORMAT": "json",
        "HTTP_PORT": "0",
        # Nobody listens there.
        "RABBITMQ_URL": "amqp://127.0.0.1:1",
        "REDIS_URL": "redis://127.0.0.1:1",
    }


async def started(words: list[str], log: Path, environment: dict[str, str]) -> asyncio.subprocess.Process:
    with log.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable, *words, cwd=ROOT, env=environment, stdout=output, stderr=output
        )


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_that_waits_for_temporal_stops_when_told(stack: StackInfo, tmp_path: Path, name: str) -> None:
    """Nobody listens at Temporal's address: SIGTERM ends the process at once, with code 0."""
    log = tmp_path / "log"
    process = await started(PROGRAMS[name], log, environment(stack, tmp_path, "127.0.0.1:1"))

    async def waits() -> bool:
        return "no Temporal server answers" in log.read_text()

    try:
        await eventually(waits)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PROMPTLY) == 0
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_that_a_silent_server_holds_stops_when_told(
    stack: StackInfo, tmp_path: Path, silent: tuple[str, asyncio.Event], name: str
) -> None:
    """Temporal takes the connection and says nothing: SIGTERM does not wait for it."""
    address, asked = silent
    log = tmp_path / "log"
    process = await started(PROGRAMS[name], log, environment(stack, tmp_path, address))
    try:
        await asyncio.wait_for(asked.wait(), 45)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PROMPTLY) == 0
    finally:
        if process.returncode is None:
            process.kill()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    "words", [["worker.py"], ["-m", "redrive.processes.rabbitmq_bridge"], ["-m", "redrive.processes.console"]]
)
async def test_wrong_settings_are_one_sentence(tmp_path: Path, words: list[str]) -> None:
    """A program that cannot read its settings says which, without a stack, and ends with code 1."""
    log = tmp_path / "log"
    process = await started(words, log, os.environ | {"REDRIVE_STALL_LIMIT": "soon"})
    assert await asyncio.wait_for(process.wait(), 45) == 1
    assert "REDRIVE_STALL_LIMIT" in log.read_text()
    assert "Traceback" not in log.read_text()


async def test_a_server_with_data_of_an_earlier_release_gets_what_it_lacks(tmp_path: Path) -> None:
    """The embedded Temporal server registers search attributes in new data alone: the one of labels is added."""
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        ports = first.getsockname()[1], second.getsockname()[1]
    server = TemporalServer(find_temporal(), tmp_path / "temporal.db", *ports)
    words = server.command
    at = words.index(f"{LABELS_ATTRIBUTE}=KeywordList")
    for command in (words[: at - 1] + words[at + 1 :], words):
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        try:
            # Data without it is ready as soon as it has been added; data that has it stays so.
            await eventually(server.is_ready)
        finally:
            process.terminate()
            await process.wait()


async def test_worker_is_ready_though_temporal_is_too_busy_for_its_schedules(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash it has a thousand steps to make up for, and takes them: nobody has to give it up."""
    ready = tmp_path / "ready"
    is_asked, has_given_up = asyncio.Event(), asyncio.Event()

    async def no_answer(*_: object) -> None:
        is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_given_up.set()

    monkeypatch.setattr(worker_program, "keep_schedules", no_answer)
    monkeypatch.setattr(worker_program, "KEEP_TIMEOUT", timedelta(milliseconds=100))
    chosen = settings.model_copy(update={"ready_file": ready, "modules": ("redrive.examples",)})
    serving = asyncio.create_task(worker_program.serve(chosen))
    try:
        await eventually(partial(asyncio.to_thread, ready.exists))
        assert is_asked.is_set()
    finally:
        serving.cancel()
        await asyncio.wait({serving})
    assert has_given_up.is_set()
