"""Chat completions, as OpenAI defines them and many servers offer them."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from redrive.connectors.llm.answers import Question, Reply, Stop, Usage
from redrive.connectors.llm.refusals import duration, latest_reset
from redrive.connectors.llm.server_sent_events import events
from redrive.http import Refusal, ServiceResponse, bearer

# Strict mode refuses them; pydantic checks the answer anyway.
_IGNORED: Final = frozenset({"default", "minLength", "maxLength"})
_STOPS: Final[dict[str, Stop]] = {"length": "length", "content_filter": "refused"}


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message = Field(default_factory=_Message)
    delta: _Message = Field(default_factory=_Message)
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(BaseModel):
    id: str = ""
    model: str = ""
    choices: list[_Choice]
    usage: _Usage | None = None


@dataclass(frozen=True)
class OpenAi:
    """OpenAI's API."""

    path: str = "/chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict)

    def sign_in(self, token: str) -> Mapping[str, str]:
        return bearer(token)

    def body(self, question: Question) -> dict[str, Any]:
        system = [{"role": "system", "content": question.system}] if question.system else []
        body: dict[str, Any] = {
            "model": question.model,
            "messages": [*system, *({"role": turn.role, "content": turn.text} for turn in question.messages)],
        }
        if "max_tokens" not in question.parameters:
            body["max_completion_tokens"] = question.max_tokens
        if question.schema is not None:
            body["response_format"] = _response_format(question.schema_name, question.schema)
        if question.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | dict(question.parameters)

    def reply(self, response: ServiceResponse) -> Reply:
        return _reply([_Completion.model_validate_json(response.body)], "message")

    def streamed(self, response: ServiceResponse) -> Reply:
        return _reply([_Completion.model_validate(event) for event in events(response, "[DONE]")], "delta")

    def retry_after(self, refusal: Refusal) -> float | None:
        return latest_reset(
            {
                kind: (
                    refusal.headers.get(f"x-ratelimit-remaining-{kind}"),
                    duration(refusal.headers.get(f"x-ratelimit-reset-{kind}")),
                )
                for kind in ("requests", "tokens")
            }
        )


def _reply(parts: list[_Completion], place: Literal["message", "delta"]) -> Reply:
    """Put an answer together: a whole one has one part, a streamed one many, and its usage is in the last."""
    choices = [choice for part in parts for choice in part.choices[:1]]
    messages: list[_Message] = [getattr(choice, place) for choice in choices]
    usage = next((part.usage for part in reversed(parts) if part.usage), None) or _Usage()
    reason = next((choice.finish_reason for choice in reversed(choices) if choice.finish_reason), None) or ""
    refusal = "".join(message.refusal or "" for message in messages)
    return Reply(
        text="".join(message.content or "" for message in messages) or refusal,
        usage=Usage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens),
        model=next((part.model for part in parts if part.model), ""),
        id=next((part.id for part in parts if part.id), ""),
        stop="refused" if refusal else _STOPS.get(reason, "end"),
    )


def _response_format(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    strict = not any(_is_open(node) for node in _nodes(schema))
    schema = _closed(schema) if strict else schema
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}}


def _is_open(node: dict[str, Any]) -> bool:
    """Tell whether strict mode cannot take this: an object with any names, or a choice that it does not know."""
    return "oneOf" in node or (node.get("type") == "object" and not node.get("properties"))


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema as strict mode takes it: every property required, no other allowed."""
    schema = deepcopy(schema)
    for node in list(_nodes(schema)):
        for name in _IGNORED | (node.keys() - {"$ref"} if "$ref" in node else set()):
            node.pop(name, None)
        if node.get("type") == "object":
            node |= {"additionalProperties": False, "required": list(node["properties"])}
    return schema


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schema and all schemas in it."""
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += [each for name in ("anyOf", "allOf", "oneOf", "prefixItems") for each in schema.get(name, [])]
    inner += [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    for each in inner:
        yield from _nodes(each)
