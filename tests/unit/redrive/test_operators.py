"""What the operators' client refuses before anything is sent."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from redrive.dead_letter_client import DeadLetters
from redrive.dead_letters import LetterId
from redrive.errors import InvalidInput, Unavailable

LETTER = LetterId(tenant="t", run_id="run-1", step="second")


@pytest.fixture
async def letters() -> DeadLetters:
    """Orders that could not be sent: there is no server."""
    return await letters_at(1)


async def letters_at(port: int) -> DeadLetters:
    """Orders to a server at this port, which is not asked yet."""
    client = await Client.connect(f"127.0.0.1:{port}", lazy=True, data_converter=pydantic_data_converter)
    return DeadLetters(client, "queue")


@pytest.mark.parametrize(
    ("who", "why", "request_id", "field"),
    [("", "x", None, "requested_by"), ("ada", "", None, "reason"), ("ada", "x", "i" * 256, "request_id")],
)
async def test_command_without_who_and_why_is_refused(
    letters: DeadLetters, who: str, why: str, request_id: str | None, field: str
) -> None:
    """With the name of the field."""
    with pytest.raises(InvalidInput, match=field):
        await letters.discard(LETTER, requested_by=who, reason=why, request_id=request_id)
    with pytest.raises(InvalidInput, match=field):
        await letters.go_on("run-1", requested_by=who, reason=why, request_id=request_id)


async def test_from_step_that_is_no_name_is_refused(letters: DeadLetters) -> None:
    """Names have a shape."""
    with pytest.raises(InvalidInput, match="from_step"):
        await letters.replay(LETTER, requested_by="ada", reason="x", from_step="Not a name")


@pytest.fixture
async def complaints() -> AsyncIterator[list[dict[str, Any]]]:
    """What asyncio's loop complains of. All tests share the loop."""
    heard: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(context))
    yield heard
    loop.set_exception_handler(None)


async def test_command_without_an_answer_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, complaints: list[dict[str, Any]]
) -> None:
    """It is one error for the caller, and no complaint of asyncio's on stderr."""
    monkeypatch.setattr("redrive.dead_letter_client.ANSWER_TIMEOUT", timedelta(milliseconds=300))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        letters = await letters_at(silent.getsockname()[1])
        with pytest.raises(Unavailable, match="same request id"):
            await letters.discard(LETTER, requested_by="ada", reason="x")
    await asyncio.sleep(0)
    gc.collect()
    assert complaints == []
