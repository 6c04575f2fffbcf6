"""OpenCode: a prompt is sent once, whatever breaks between the attempts, and each error means something.

With REDRIVE_TEST_OPENCODE="http://127.0.0.1:4096 <password>" the first tests also run against that server.
"""

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from redrive.categories import Category
from redrive.connectors.opencode import OpenCode, Session
from redrive.errors import ServiceError, Terminal
from redrive.examples.site import Request
from tests.unit.connectors.conftest import ClientFactory
from tests.unit.connectors.opencode_server import PASSWORD, Found, OpenCodeServer, api_error
from tests.unit.redrive.conftest import Received, Server, reply

REAL = os.environ.get("REDRIVE_TEST_OPENCODE", "").split()
NO_SERVER = "no server: `make real-services` installs OpenCode and runs this"
SHORT = timedelta(seconds=0.4)


@pytest.fixture
def fake(server: Server) -> OpenCodeServer:
    """The server in memory."""
    made = OpenCodeServer()
    server.otherwise = made.answer
    return made


@pytest.fixture
def opencode(client: ClientFactory, fake: OpenCodeServer) -> OpenCode:
    """A client of the server in memory."""
    return OpenCode(client(token=SecretStr(PASSWORD)))


@dataclass(frozen=True)
class Stage:
    """A client of the server in memory or of a real one, and a title that nobody has there."""

    opencode: OpenCode
    title: str


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason=NO_SERVER))])
def stage(request: pytest.FixtureRequest, opencode: OpenCode, client: ClientFactory) -> Stage:
    """A client of the server in memory, and of a real one if there is one."""
    if request.param == "real":
        opencode = OpenCode(client(base_url=REAL[0], token=SecretStr(REAL[1])))
    return Stage(opencode, f"t-{uuid.uuid4().hex}")


async def test_server_tells_its_health(stage: Stage) -> None:
    """Health needs the password, as everything does."""
    health = await stage.opencode.health()
    assert health.healthy
    assert health.version


async def test_session_is_created_once(stage: Stage) -> None:
    """A session is found by its title, not by a part of it."""
    first = await stage.opencode.session(stage.title)
    assert await stage.opencode.session(stage.title) == first
    assert (await stage.opencode.session(stage.title[:-1])).id != first.id


async def test_prompt_is_answered_once(stage: Stage) -> None:
    """The same command again gives the same answer; the next command in the session gets its own, after it."""
    session = await stage.opencode.session(stage.title)
    first = await stage.opencode.ask(session, "Write a plan", operation="plan")
    again = await stage.opencode.ask(session, "Write a plan", operation="plan")
    other = await stage.opencode.ask(session, "Write a test", operation="test")
    assert (again, other.id != first.id) == (first, True)
    assert first.text
    assert first.input_tokens > 0
    assert first.output_tokens > 0
    assert other.id > first.id


async def test_answer_that_is_lost_on_the_way_is_found(opencode: OpenCode, fake: OpenCodeServer) -> None:
    """The server took the prompt, its answer was lost: the next attempt does not send it again."""
    lost = [502]

    def after(request: Received) -> Found | None:
        return (lost.pop(), None) if lost and "prompt_async" in request.target else None

    fake.after = after
    session = await opencode.session("s")
    with pytest.raises(ServiceError, match="answered 502"):
        await opencode.ask(session, "Write a plan")
    assert (await opencode.ask(session, "Write a plan")).text == "done: Write a plan"
    assert fake.worked == ["Write a plan"]


async def test_late_prompt_is_the_same_message(opencode: OpenCode, fake: OpenCodeServer) -> None:
    """A prompt that arrives after its retry has the same id, and its text is there once."""
    held: list[Received] = []

    def before(request: Received) -> Found | None:
        if "prompt_async" in request.target and not held:
            held.append(request)
            return 504, None
        return None

    fake.before = before
    session = await opencode.session("s")
    with pytest.raises(ServiceError, match="answered 504"):
        await opencode.ask(session, "Write a plan")
    await opencode.ask(session, "Write a plan")
    fake.respond(Request(**vars(held[0])))
    assert fake.worked == ["Write a plan"]
    [sent] = [message for message in fake.messages[session.id] if message["info"]["role"] == "user"]
    assert [part["text"] for part in sent["parts"]] == ["Write a plan"]


async def test_running_prompt_is_waited_for(opencode: OpenCode, fake: OpenCodeServer) -> None:
    """An attempt that is out of time leaves the agent at work; the next one waits for the same answer."""
    fake.agent = lambda _prompt: None
    session = await opencode.session("s")
    with pytest.raises(ServiceError, match="the next attempt waits for the same answer") as caught:
        await opencode.ask(session, "Write a plan", timeout=SHORT)
    assert caught.value.category is Category.TIMEOUT
    with pytest.raises(ServiceError):
        await opencode.ask(session, "Write a plan", timeout=SHORT)
    [sent] = fake.messages[session.id]
    fake.finish(session.id, sent["info"]["id"], "at last")
    assert (await opencode.ask(session, "Write a plan", timeout=SHORT)).text == "at last"
    assert fake.worked == ["Write a plan"]


async def test_interrupted_prompt_is_taken_up_again(opencode: OpenCode, fake: OpenCodeServer) -> None:
    """A server that was restarted has forgotten that it was at work: the same message is sent again."""
    fake.agent = lambda _prompt: None
    session = await opencode.session("s")
    with pytest.raises(ServiceError):
        await opencode.ask(session, "Write a plan", timeout=SHORT)
    fake.busy.clear()
    fake.agent = lambda prompt: f"done: {prompt}"
    assert (await opencode.ask(session, "Write a plan")).text == "done: Write a plan"
    assert len([message for message in fake.messages[session.id] if message["info"]["role"] == "user"]) == 1


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (api_error(503, retryable=True), Category.PROVIDER_5XX),
        (api_error(429, retryable=True), Category.RATE_LIMIT),
        (api_error(400, retryable=True), Category.PROVIDER_5XX),
        (api_error(401, retryable=False), Category.PROVIDER_4XX),
        ({"name": "APIError", "data": {"message": "no status", "isRetryable": False}}, Category.PROVIDER_4XX),
        ({"name": "ProviderAuthError", "data": {"providerID": "x", "message": "no key"}}, Category.MISSING_CONFIG),
        ({"name": "ContextOverflowError", "data": {"message": "too long"}}, Category.TOO_LARGE),
        ({"name": "MessageAbortedError", "data": {"message": "The operation was aborted."}}, Category.PROVIDER_4XX),
        ({"name": "UnknownError", "data": {"message": "?"}}, Category.UNKNOWN),
    ],
)
async def test_failed_answer_is_classified_and_asked_for_again(
    opencode: OpenCode, fake: OpenCodeServer, error: dict[str, Any], category: Category
) -> None:
    """The agent's errors have categories; the next attempt asks again, under the same message."""
    outcomes: list[str | dict[str, Any]] = [error, "good"]
    fake.agent = lambda _prompt: outcomes.pop(0)
    session = await opencode.session("s")
    with pytest.raises(ServiceError, match=error["name"]) as caught:
        await opencode.ask(session, "Write a plan")
    assert caught.value.category is category
    assert (await opencode.ask(session, "Write a plan")).text == "good"
    assert len([message for message in fake.messages[session.id] if message["info"]["role"] == "user"]) == 1


async def test_error_of_the_agent_shows_no_secret(opencode: OpenCode, fake: OpenCodeServer) -> None:
    """What the provider said is redacted, the password included."""
    fake.agent = lambda _prompt: api_error(500, retryable=True, message=f"api_key=hunter22 {PASSWORD}")
    with pytest.raises(ServiceError) as caught:
        await opencode.ask(await opencode.session("s"), "x")
    assert "hunter22" not in str(caught.value)
    assert PASSWORD not in str(caught.value)


async def test_oldest_session_of_a_title_is_used(opencode: OpenCode, fake: OpenCodeServer) -> None:
    """A create that arrives late makes a second session of the title, which is never used."""
    first = await opencode.session("s")
    fake._create({"title": "s"})
    assert await opencode.session("s") == first


async def test_prompt_needs_a_stable_id(client: ClientFactory, fake: OpenCodeServer) -> None:
    """Outside of a step the caller gives the id; without any, nothing is sent."""
    opencode = OpenCode(client(key_for=None, token=SecretStr(PASSWORD)), directory="/srv/work")
    session = await opencode.session("s")
    with pytest.raises(Terminal, match="needs a `command`"):
        await opencode.ask(session, "x")
    await opencode.ask(session, "x", command="mine", agent="plan")
    await opencode.ask(session, "x", command="mine")
    assert fake.worked == ["x"]


async def test_directory_and_agent_are_sent(client: ClientFactory, fake: OpenCodeServer, server: Server) -> None:
    """All calls are for the same directory, and a prompt may name its agent."""
    opencode = OpenCode(client(token=SecretStr(PASSWORD)), directory="/srv/work")
    await opencode.ask(await opencode.session("s"), "x", agent="plan")
    assert all("directory=%2Fsrv%2Fwork" in request.target for request in server.received)
    [prompt] = [request for request in server.received if "prompt_async" in request.target]
    assert b'"agent": "plan"' in prompt.body
    assert prompt.headers["idempotency-key"] == "run-1:step:ask"


async def test_wrong_password_is_terminal(client: ClientFactory, fake: OpenCodeServer) -> None:
    """A refused password is told at once, and is not shown."""
    with pytest.raises(ServiceError, match="answered 401") as caught:
        await OpenCode(client(token=SecretStr("Zq-wrong-one"))).health()
    assert caught.value.category is Category.PROVIDER_4XX
    assert "Zq-wrong-one" not in str(caught.value)


async def test_unknown_session_is_terminal(opencode: OpenCode) -> None:
    """A session that is gone is a refusal with the server's reason."""
    gone = Session.model_validate({"id": "ses_gone", "time": {"created": 1}})
    with pytest.raises(ServiceError, match="Session not found") as caught:
        await opencode.ask(gone, "x")
    assert caught.value.category is Category.PROVIDER_4XX


@pytest.mark.parametrize("call", [lambda c: c.session("s"), lambda c: c.health()], ids=["session", "health"])
async def test_another_server_is_told(client: ClientFactory, server: Server, call: Callable[[OpenCode], Any]) -> None:
    """An answer of something else is an error, and terminal."""
    server.otherwise = reply(200, {"hello": "world"})
    with pytest.raises(ServiceError) as caught:
        await call(OpenCode(client()))
    assert caught.value.category in {Category.SERIALIZATION, Category.VALIDATION}
