"""A language model behind an OpenAI-compatible endpoint. It fills the schema that it is given with plain values."""

import json
from dataclasses import dataclass, field
from typing import Any

from redrive.examples.site import Request

TOKEN = "sk-stand-in-123456"  # noqa: S105 - of a stand-in
Found = tuple[int, Any]


@dataclass
class LanguageModel:
    """Answers every question in the same way; `asked` has the prompts."""

    token: str = TOKEN
    asked: list[str] = field(default_factory=list)

    def respond(self, request: Request) -> Found:
        """Answer any request with a status and a body."""
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return 401, _problem("Incorrect API key provided", "invalid_api_key")
        if request.path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "stand-in", "object": "model"}]}
        if (request.method, request.path) != ("POST", "/v1/chat/completions"):
            return 404, _problem(f"Invalid URL ({request.method} {request.path})", None)
        return 200, self._completion(request.document)

    def _completion(self, given: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(str(given["messages"][-1]["content"]))
        schema = given.get("response_format", {}).get("json_schema", {}).get("schema")
        content = json.dumps(_filled(schema)) if schema else "Here you are."
        message = {"role": "assistant", "content": content, "refusal": None}
        return {
            "id": f"chatcmpl-{len(self.asked):04}",
            "object": "chat.completion",
            "model": given["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60},
        }


def _filled(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: _filled(each) for name, each in schema["properties"].items()}
        case "array":
            return [_filled(schema["items"])]
        case "integer" | "number":
            return 1
        case _:
            return "system design"


def _problem(message: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
