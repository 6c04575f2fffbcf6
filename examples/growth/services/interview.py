"""The interview service: it configures one session for each idempotency key."""

from dataclasses import dataclass, field
from typing import Any

from redrive.examples.site import Request

TOKEN = "interview-Zq-123456"  # noqa: S105 - of a stand-in
Found = tuple[int, Any]


@dataclass
class Interview:
    """The sessions that it has configured, by the idempotency keys that it was asked with."""

    token: str = TOKEN
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)

    def respond(self, request: Request) -> Found:
        """Answer any request with a status and a body."""
        if request.method == "GET" and request.path == "/health":
            return 200, {"status": "ok"}
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"error": "unknown token"}
        if (request.method, request.path) != ("POST", "/sessions"):
            return 404, {"error": f"nothing is at {request.path}"}
        key = request.headers.get("idempotency-key")
        if not key:
            return 400, {"error": "the header Idempotency-Key is missing"}
        return self._configure(key, request.document)

    def _configure(self, key: str, given: dict[str, Any]) -> Found:
        number = len(self.sessions) + 1
        session = self.sessions.setdefault(key, {"id": f"session_{number:04}", **given})
        return 201, session
