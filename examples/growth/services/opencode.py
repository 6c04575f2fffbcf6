"""An OpenCode server in memory, with an agent that its user directs. It answers as OpenCode 1.18 does."""

import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redrive.examples.site import Request

PASSWORD = "pw-Zq-123456"  # noqa: S105 - of a stand-in
Found = tuple[int, Any]
CREATED = 1794890199009


def api_error(status: int, *, retryable: bool, message: str = "provider says no") -> dict[str, Any]:
    """The error of an answer, when the agent's model failed."""
    return {"name": "APIError", "data": {"message": message, "statusCode": status, "isRetryable": retryable}}


@dataclass
class OpenCode:
    """`agent` is called for each prompt that is worked on: it returns a text, an error, or None for no answer yet.

    A message that is sent again is kept once, and asked of the agent again only if it has no good answer and the
    session is idle, as the real server does.
    """

    agent: Callable[[str], str | dict[str, Any] | None] = lambda prompt: f"done: {prompt}"
    sessions: list[dict[str, Any]] = field(default_factory=list)
    messages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    worked: list[str] = field(default_factory=list)

    def respond(self, request: Request) -> Found:  # noqa: PLR0911 - one for each route
        """Answer any request with a status and a body."""
        expected = b64encode(f"opencode:{PASSWORD}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {expected}":
            return 401, None
        place, given = request.path, request.document
        match request.method, place:
            case "GET", "/global/health":
                return 200, {"healthy": True, "version": "1.18.33"}
            case "GET", "/session":
                search = request.query.get("search", "")
                return 200, [session for session in self.sessions if search in session["title"]]
            case "POST", "/session":
                return 200, self._create(given)
            case "GET", "/session/status":
                return 200, {session: {"type": "busy"} for session in self.busy}
        matched = re.fullmatch(r"/session/(ses_\w+)/(message|prompt_async)", place)
        if not matched or matched[1] not in self.messages:
            return 404, {"name": "NotFoundError", "data": {"message": f"Session not found: {place}"}}
        if matched[2] == "message":
            return 200, sorted(self.messages[matched[1]], key=lambda message: str(message["info"]["id"]))
        self._prompt(matched[1], given)
        return 204, None

    def _create(self, given: dict[str, Any]) -> dict[str, Any]:
        number = len(self.sessions) + 1
        session = {"id": f"ses_{number:04}", "title": given["title"], "time": {"created": CREATED + number}}
        # The newest first, as the real one lists them.
        self.sessions.insert(0, session)
        self.messages[str(session["id"])] = []
        return session

    def _prompt(self, session: str, given: dict[str, Any]) -> None:
        known = self.messages[session]
        sent = next((message for message in known if message["info"]["id"] == given["messageID"]), None)
        if sent is None:
            info = {"id": given["messageID"], "role": "user", "time": {"created": CREATED}}
            sent = {"info": info, "parts": []}
            known.append(sent)
        names = {part["id"] for part in sent["parts"]}
        sent["parts"] += [part for part in given["parts"] if part["id"] not in names]
        answers = [message["info"] for message in known if message["info"].get("parentID") == given["messageID"]]
        if session not in self.busy and not any("finish" in info for info in answers):
            self._work(session, given["messageID"], given["parts"][0]["text"])

    def _work(self, session: str, message_id: str, prompt: str) -> None:
        self.worked.append(prompt)
        outcome = self.agent(prompt)
        if outcome is None:
            self.busy.add(session)
            return
        self.finish(session, message_id, outcome)

    def finish(self, session: str, message_id: str, outcome: str | dict[str, Any]) -> None:
        """Give a prompt its answer, with a call of a tool before it."""
        self.busy.discard(session)
        known = self.messages[session]
        last = max(int(message["info"]["id"][4:16], 16) for message in known)
        info: dict[str, Any] = {"role": "assistant", "parentID": message_id, "cost": 0.25}
        info["tokens"] = {"input": 5, "output": 2, "reasoning": 0}
        if isinstance(outcome, dict):
            ended: dict[str, Any] = {"error": outcome, "time": {"created": CREATED, "completed": CREATED + 1}}
            known.append({"info": info | ended | {"id": f"msg_{last + 9:012x}aaaaaaaaaaaaaa"}, "parts": []})
            return
        times = {"time": {"created": CREATED, "completed": CREATED + 1}}
        tool = info | times | {"id": f"msg_{last + 8:012x}aaaaaaaaaaaaaa", "finish": "tool-calls"}
        known.append({"info": tool, "parts": [{"type": "tool"}]})
        final = info | times | {"id": f"msg_{last + 9:012x}aaaaaaaaaaaaaa", "finish": "stop"}
        parts = [{"type": "step-start"}, {"type": "text", "text": outcome}, {"type": "step-finish"}]
        known.append({"info": final, "parts": parts})
