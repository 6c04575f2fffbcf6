"""Anthropic's messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel, Field
from pydantic_core import to_json

from redrive.classify import parse_date
from redrive.connectors.llm.answers import Question, Reply, Stop, Usage
from redrive.connectors.llm.refusals import latest_reset, until
from redrive.connectors.llm.server_sent_events import events
from redrive.http import Refusal, ServiceResponse

VERSION: Final = "2023-06-01"
_STOPS: Final[dict[str, Stop]] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class _Block(BaseModel):
    type: str = ""
    text: str = ""
    input: Any = None
    partial_json: str = ""


class _Usage(BaseModel):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0

    def counted(self) -> Usage:
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return Usage(input_tokens=self.input_tokens + cached, output_tokens=self.output_tokens)


class _Message(BaseModel):
    id: str = ""
    model: str = ""
    content: list[_Block]
    stop_reason: str | None = None
    usage: _Usage = Field(default_factory=_Usage)


class _Delta(BaseModel):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Event(BaseModel):
    type: str = ""
    message: _Message | None = None
    delta: _Delta = Field(default_factory=_Delta)
    usage: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Anthropic:
    """Anthropic's API. A structured answer is the input of a tool that the model has to use: every model can that."""

    path: str = "/messages"
    headers: Mapping[str, str] = field(default_factory=lambda: {"anthropic-version": VERSION})

    def sign_in(self, token: str) -> Mapping[str, str]:
        return {"x-api-key": token}

    def body(self, question: Question) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": question.model,
            "max_tokens": question.max_tokens,
            "messages": [{"role": turn.role, "content": turn.text} for turn in question.messages],
        }
        if question.system:
            body["system"] = question.system
        if question.schema is not None:
            tool = {"name": question.schema_name, "description": "Give the answer.", "input_schema": question.schema}
            body |= {"tools": [tool], "tool_choice": {"type": "tool", "name": question.schema_name}}
        if question.stream:
            body["stream"] = True
        return body | dict(question.parameters)

    def reply(self, response: ServiceResponse) -> Reply:
        message = _Message.model_validate_json(response.body)
        used = [to_json(block.input).decode() for block in message.content if block.type == "tool_use"]
        text = "".join(block.text for block in message.content if block.type == "text")
        return _reply(message, used[0] if used else text, message.stop_reason, message.usage)

    def streamed(self, response: ServiceResponse) -> Reply:
        message, texts, inputs, reason, counts = _Message(content=[]), [], [], None, {}
        for event in (_Event.model_validate(event) for event in events(response, "message_stop")):
            if event.message is not None:
                message = event.message
                counts = message.usage.model_dump()
            texts.append(event.delta.text)
            inputs.append(event.delta.partial_json)
            reason = event.delta.stop_reason or reason
            # They are totals, and some events have only some of them.
            counts |= event.usage
        return _reply(message, "".join(inputs) or "".join(texts), reason, _Usage.model_validate(counts))

    def retry_after(self, refusal: Refusal) -> float | None:
        headers, now = refusal.headers, parse_date(refusal.headers.get("date", "")) or datetime.now(UTC)
        kinds = ("requests", "tokens", "input-tokens", "output-tokens")
        start = "anthropic-ratelimit-"
        return latest_reset(
            {
                kind: (headers.get(f"{start}{kind}-remaining"), until(headers.get(f"{start}{kind}-reset"), now))
                for kind in kinds
            }
        )


def _reply(message: _Message, text: str, reason: str | None, usage: _Usage) -> Reply:
    stop = _STOPS.get(reason or "", "end")
    return Reply(text=text, usage=usage.counted(), model=message.model, id=message.id, stop=stop)
