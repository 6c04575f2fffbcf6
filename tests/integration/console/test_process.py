"""The console as a process of its own: it listens, answers, and stops at once although somebody listens to it."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

import httpx
import pytest

from redrive.settings import Settings
from tests.conftest import eventually
from tests.integration.console.conftest import MakeToken


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment(settings: Settings, port: int) -> dict[str, str]:
    url, access = settings.database_url, settings.access_database_url
    return os.environ | {
        "TEMPORAL_ADDRESS": settings.temporal_address or "",
        "DATABASE_URL": url.get_secret_value() if url else "",
        "REDRIVE_ACCESS_DATABASE_URL": access.get_secret_value() if access else "",
        "REDRIVE_CONSOLE_ADDRESS": f"127.0.0.1:{port}",
        "REDRIVE_LOG_FORMAT": "json",
    }


@pytest.fixture(scope="module")
async def console(
    console_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """`python -m redrive.processes.console`, and its address."""
    port = _free_port()
    with (tmp_path_factory.mktemp("process") / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "redrive.processes.console",
            env=_environment(console_settings, port),
            stdout=log,
            stderr=log,
        )
    address = f"http://127.0.0.1:{port}"

    async def ready() -> bool:
        async with httpx.AsyncClient() as client:
            try:
                return (await client.get(f"{address}/readyz", timeout=10)).status_code == 200
            except httpx.TransportError:
                return False

    try:
        await eventually(ready, within=60)
        yield address, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_taken_port_is_a_sentence(
    console: tuple[str, asyncio.subprocess.Process], console_settings: Settings
) -> None:
    """A second console on the same port says so, without a stack."""
    port = int(console[0].rpartition(":")[2])
    second = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "redrive.processes.console"),
        env=_environment(console_settings, port),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(second.communicate(), timeout=60)
    assert second.returncode == 1
    assert "cannot listen there" in said.decode()
    assert "Traceback" not in said.decode()


async def test_it_stops_although_a_stream_is_open(
    console: tuple[str, asyncio.subprocess.Process], make_token: MakeToken
) -> None:
    """SIGTERM ends open streams first, then the process, with code 0."""
    address, process = console
    headers = {"Authorization": f"Bearer {await make_token()}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        assert (await client.get("/api/v1/me")).status_code == 200
        async with client.stream("GET", "/api/v1/events") as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            process.send_signal(signal.SIGTERM)
            assert [line async for line in lines][-2:] == ["data: {}", ""]
    assert await asyncio.wait_for(process.wait(), timeout=60) == 0
