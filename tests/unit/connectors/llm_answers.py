"""What the two APIs answer, as their references document it."""

import json
from typing import Any

from tests.unit.redrive.conftest import Answer, raw

USAGE = {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21}


def completion(content: str | None, *, reason: str = "stop", **message: Any) -> dict[str, Any]:
    """An OpenAI chat completion."""
    told = {"role": "assistant", "content": content, "refusal": None} | message
    return {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion",
        "created": 1741569952,
        "model": "gpt-5-mini-2025-08-07",
        "choices": [{"index": 0, "message": told, "logprobs": None, "finish_reason": reason}],
        "usage": USAGE,
        "service_tier": "default",
    }


def message(*content: dict[str, Any], reason: str = "end_turn") -> dict[str, Any]:
    """An Anthropic message."""
    return {
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": list(content),
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 1,
            "cache_read_input_tokens": 3,
            "output_tokens": 12,
        },
    }


def text_block(text: str) -> dict[str, Any]:
    """A text of an Anthropic message."""
    return {"type": "text", "text": text}


def tool_block(given: Any) -> dict[str, Any]:
    """A tool's use in an Anthropic message."""
    return {"type": "tool_use", "id": "toolu_01", "name": "Verdict", "input": given}


def openai_error(text: str, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error body."""
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def anthropic_error(kind: str, text: str) -> dict[str, Any]:
    """Anthropic's error body."""
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}


def openai_chunks(*texts: str) -> list[str]:
    """The events of a streamed chat completion, with usage and end."""
    head: dict[str, Any] = {"id": "chatcmpl-123", "object": "chat.completion.chunk", "model": "gpt-5-mini"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    parts = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    parts.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    parts.append(head | {"choices": [], "usage": USAGE})
    return [*(f"data: {json.dumps(part)}\n\n" for part in parts), "data: [DONE]\n\n"]


def anthropic_chunks(*deltas: dict[str, Any], reason: str = "end_turn") -> list[str]:
    """The events of a streamed message, with a ping, usage and end."""
    start = message(reason="end_turn") | {"stop_reason": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 15},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def stream(*events: str) -> Answer:
    """Answer with a stream of these events, then hang up in an orderly way."""
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return raw((head + "".join(events)).encode())
