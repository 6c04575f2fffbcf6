"""The model behind OpenCode's agent: chat completions as a stream, directed by the test."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.unit.redrive.conftest import Received, reply

_CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "stand-in"}
_USAGE = {"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60}


async def done(prompt: str) -> str | int:
    """Answer any prompt."""
    return f"done: {prompt}"


@dataclass
class Model:
    """`answers` is asked for each prompt: it returns a text, or the status of a failure. `asked` has the prompts."""

    answers: Callable[[str], Awaitable[str | int]]
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """Answer a completion."""
        prompt = _prompt(json.loads(request.body))
        self.asked.append(prompt)
        found = await self.answers(prompt)
        if isinstance(found, int):
            problem = {"message": "the model says no", "type": "invalid_request_error", "param": None, "code": None}
            await reply(found, {"error": problem}, content_type="application/json")(request, writer)
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for delta, reason in (({"role": "assistant", "content": found}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            usage = {"usage": _USAGE} if reason else {}
            writer.write(f"data: {json.dumps(_CHUNK | {'choices': [choice]} | usage)}\n\n".encode())
        writer.write(b"data: [DONE]\n\n")


def _prompt(given: dict[str, Any]) -> str:
    """Return the text of the last message of the user."""
    last = [message["content"] for message in given["messages"] if message["role"] == "user"][-1]
    return last if isinstance(last, str) else "".join(part.get("text", "") for part in last)
