"""OpenCode: a coding agent behind an HTTP server. A prompt has a stable command id, so that it is sent once.

The id of a prompt's message ends with a hash of the step's key. An attempt looks for that message first. If it is
there, the attempt waits for its answer instead of asking again; if it is not, the id that the attempt makes is the same
as the last attempt's, and the server keeps one message for both.
"""

import asyncio
import hashlib
from base64 import b64encode
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from redrive.categories import TRANSIENT_CATEGORIES, Category
from redrive.classify import category_of_status
from redrive.connectors.probes import Probe, probe
from redrive.contracts import MIB
from redrive.errors import ServiceError, Terminal
from redrive.http import ServiceClient, bearer

T = TypeVar("T")

# A session's messages have what its tools printed.
RESPONSE_LIMIT: Final = 32 * MIB
_TIME_BITS: Final = 48
_SHORTEST_POLL: Final = 0.25
_LONGEST_POLL: Final = 5.0
_CATEGORIES: Final = {
    "ProviderAuthError": Category.MISSING_CONFIG,
    "MessageOutputLengthError": Category.TOO_LARGE,
    "ContextOverflowError": Category.TOO_LARGE,
    "ContentFilterError": Category.PROVIDER_4XX,
    "StructuredOutputError": Category.VALIDATION,
    # Somebody stopped it: a retry would start it against their will.
    "MessageAbortedError": Category.PROVIDER_4XX,
}


class Health(BaseModel):
    """What the server says of itself."""

    healthy: bool
    version: str


class _SessionTime(BaseModel):
    created: int


class Session(BaseModel):
    """A conversation with the agent, in one directory."""

    id: str
    title: str = ""
    time: _SessionTime


class _Problem(BaseModel):
    name: str = "UnknownError"
    data: dict[str, Any] = Field(default_factory=dict)


class _Tokens(BaseModel):
    input: int = 0
    output: int = 0


class _MessageTime(BaseModel):
    completed: int | None = None


class _Info(BaseModel):
    id: str
    role: str
    parent: str = Field(default="", alias="parentID")
    time: _MessageTime = Field(default_factory=_MessageTime)
    finish: str | None = None
    error: _Problem | None = None
    tokens: _Tokens = Field(default_factory=_Tokens)
    cost: float = 0.0


class _Part(BaseModel):
    type: str = ""
    text: str | None = None


class _Message(BaseModel):
    info: _Info
    parts: list[_Part] = []

    @property
    def is_done(self) -> bool:
        """Whether the agent has ended with it. After a tool call another message follows."""
        info = self.info
        return info.error is not None or (info.time.completed is not None and info.finish != "tool-calls")


@dataclass(frozen=True)
class _Exchange:
    """A prompt, its last answer (there is one for each step of the agent), and the session's last message."""

    prompt: _Message | None
    answer: _Message | None
    last: _Message | None


_MESSAGES: Final = TypeAdapter(list[_Message])
_SESSIONS: Final = TypeAdapter(list[Session])


@dataclass(frozen=True)
class Reply:
    """The agent's answer to a prompt. `id` is that of its message: a stable name for what is made of it."""

    id: str
    text: str = field(repr=False)
    input_tokens: int
    output_tokens: int
    cost: float


@dataclass(frozen=True)
class OpenCode:
    """An OpenCode server: `OpenCode(ctx.http.service("opencode"))`. The service's token is the server's password."""

    service: ServiceClient
    directory: str | None = None
    username: str = "opencode"

    async def health(self) -> Health:
        """Return whether the server is healthy, and its version."""
        return await self._client.get("/global/health", operation="opencode.health", returns=Health)

    async def probe(self) -> Probe:
        """Return whether the server can be used now."""
        return await probe(self._client, path="/global/health")

    async def session(self, title: str) -> Session:
        """Return the session of this title, or create it. Of several the oldest: a late duplicate is never used."""
        client, params = self._client, self._params()
        found = await client.get("/session", operation="opencode.find_session", params=params | {"search": title})
        same = [session for session in _read(_SESSIONS, found.body) if session.title == title]
        if same:
            return min(same, key=lambda session: (session.time.created, session.id))
        return await client.post(
            "/session", operation="opencode.create_session", params=params, json={"title": title}, returns=Session
        )

    async def ask(
        self,
        session: Session,
        prompt: str,
        *,
        operation: str = "ask",
        command: str | None = None,
        agent: str | None = None,
        timeout: timedelta = timedelta(seconds=50),
    ) -> Reply:
        """Send a prompt once and return its answer.

        Each prompt of a step needs its own `operation`; outside of a step, `command` is its stable id. If the answer
        is not there in time, that is a timeout: the agent goes on, and the next attempt waits for the same answer.
        """
        mark = _mark(self._command(operation, command))
        known = await self._exchange(session, mark)
        if known.answer is not None and known.answer.is_done and known.answer.info.error is None:
            return self._reply(known.answer)
        if known.prompt is None or not await self._is_busy(session):
            message_id = known.prompt.info.id if known.prompt else f"{_next_id(session, known.last)}{mark}"
            await self._send(session, message_id, prompt, operation, agent)
        answer = await self._answer(session, mark, known.answer, timeout)
        if answer is None:
            raise ServiceError(
                f"{operation}: the agent has not answered in {timeout.total_seconds():g} s; it goes on, and the next "
                "attempt waits for the same answer",
                category=Category.TIMEOUT,
            )
        return self._reply(answer)

    async def _answer(self, session: Session, mark: str, known: _Message | None, timeout: timedelta) -> _Message | None:
        """Wait for an answer that is done, and is not a failed one that was there before.

        A server that is at work may be slow to list messages: that is a part of the wait.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout.total_seconds()
        failed = known.info if known is not None and known.is_done else None
        pause = _SHORTEST_POLL
        while loop.time() + pause < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL)
            try:
                answer = (await self._exchange(session, mark)).answer
            except ServiceError as error:
                if error.category is not Category.TIMEOUT:
                    raise
                continue
            if answer is not None and answer.is_done and answer.info != failed:
                return answer
        return None

    @property
    def _client(self) -> ServiceClient:
        def basic(password: str) -> dict[str, str]:
            return {"authorization": f"Basic {b64encode(f'{self.username}:{password}'.encode()).decode()}"}

        sign_in = basic if self.service.sign_in is bearer else self.service.sign_in
        return replace(self.service, sign_in=sign_in, response_limit=RESPONSE_LIMIT)

    def _params(self) -> dict[str, str]:
        return {"directory": self.directory} if self.directory else {}

    def _command(self, operation: str, command: str | None) -> str:
        if command is not None:
            return command
        if self.service.key_for is None:
            raise Terminal(f"{operation}: outside of a step a prompt needs a `command`, its stable id")
        return self.service.key_for(operation)

    async def _exchange(self, session: Session, mark: str) -> _Exchange:
        path = f"/session/{session.id}/message"
        found = await self._client.get(path, operation="opencode.messages", params=self._params())
        messages = _read(_MESSAGES, found.body)
        prompt = next((message for message in messages if message.info.id.endswith(mark)), None)
        answers = [message for message in messages if prompt and message.info.parent == prompt.info.id]
        return _Exchange(prompt, answers[-1] if answers else None, messages[-1] if messages else None)

    async def _is_busy(self, session: Session) -> bool:
        found = await self._client.get("/session/status", operation="opencode.status", params=self._params())
        status = found.json()
        own = status.get(session.id) if isinstance(status, dict) else None
        return isinstance(own, dict) and own.get("type") in {"busy", "retry"}

    async def _send(self, session: Session, message_id: str, prompt: str, operation: str, agent: str | None) -> None:
        # The part's id also: without it, a message that is sent again would have its text twice.
        part = {"id": f"prt_{message_id.removeprefix('msg_')}", "type": "text", "text": prompt}
        body: dict[str, Any] = {"messageID": message_id, "parts": [part]} | ({"agent": agent} if agent else {})
        path = f"/session/{session.id}/prompt_async"
        await self._client.post(path, operation=operation, params=self._params(), json=body)

    def _reply(self, answer: _Message) -> Reply:
        info = answer.info
        if info.error is not None:
            raise self._failure(info.error)
        text = "".join(part.text or "" for part in answer.parts if part.type == "text")
        return Reply(info.id, text, info.tokens.input, info.tokens.output, info.cost)

    def _failure(self, problem: _Problem) -> ServiceError:
        data = problem.data
        status = data.get("statusCode") if isinstance(data.get("statusCode"), int) else None
        category = _CATEGORIES.get(problem.name, Category.UNKNOWN)
        if problem.name == "APIError":
            category = category_of_status(status) if status and status >= 400 else Category.PROVIDER_4XX
            if data.get("isRetryable") and category not in TRANSIENT_CATEGORIES:
                category = Category.PROVIDER_5XX
        text = self.service.excerpt(str(data.get("message", "")).encode())
        return ServiceError(f"the agent failed with {problem.name}: {text}", category=category, status=status)


def _mark(command: str) -> str:
    return hashlib.sha256(command.encode()).hexdigest()[:14]


def _next_id(session: Session, last: _Message | None) -> str:
    """Return the beginning of the id of a session's next message: the server sorts by it, so it follows the last one.

    Nothing random and no clock is in it: two attempts that see the same session make the same id.
    """
    try:
        number = int(last.info.id[4:16] if last else "", 16) + 1
    except ValueError:
        number = session.time.created << 12
    return f"msg_{number & ((1 << _TIME_BITS) - 1):012x}"


def _read(adapter: TypeAdapter[T], body: bytes) -> T:
    try:
        return adapter.validate_json(body)
    except ValidationError:
        pass
    # Outside of the except block: pydantic's own text has parts of the body.
    raise ServiceError(
        "the answer does not fit OpenCode's API: look at the service's base_url", category=Category.SERIALIZATION
    )
