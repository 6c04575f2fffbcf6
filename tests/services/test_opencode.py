"""A real OpenCode server: a prompt reaches the agent once, whatever is lost, late or killed between the attempts.

`make real-services` runs it. REDRIVE_TEST_OPENCODE_PROGRAM names the server's program.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from redrive.categories import Category
from redrive.connectors.opencode import OpenCode, Session
from redrive.errors import ServiceError, Terminal
from redrive.http import ServiceClient, new_http_client
from tests.conftest import eventually
from tests.services.model import Model, done
from tests.services.opencode import PASSWORD, OpenCodeServer
from tests.services.programs import OPENCODE
from tests.services.relay import Relay
from tests.unit.redrive.conftest import Received, listening

PROGRAM = os.environ.get("REDRIVE_TEST_OPENCODE_PROGRAM", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="no server: `make real-services` installs OpenCode and runs this")
# Longer than a busy machine needs for an answer, and shorter than the wait for one that does not come.
PATIENCE = timedelta(seconds=90)
SHORT = timedelta(seconds=3)


@dataclass
class Scene:
    """The server, its model, what is between client and server, and a session and a prompt of the test's own."""

    server: OpenCodeServer
    model: Model
    relay: Relay
    opencode: OpenCode
    session: Session
    prompt: str = "Begin"

    async def attempt(self, timeout: timedelta = PATIENCE) -> str:
        """Make one attempt at the prompt."""
        return (await self.opencode.ask(self.session, self.prompt, command=self.prompt, timeout=timeout)).text

    async def ask(self) -> str:
        """Make attempts until one is in time, as a step does: a busy machine is slow."""
        while True:
            try:
                return await self.attempt()
            except ServiceError as error:
                if error.category is not Category.TIMEOUT:
                    raise

    @property
    def asked(self) -> int:
        """How often the model was asked the test's prompt."""
        return self.model.asked.count(self.prompt)

    async def until_asked(self) -> None:
        """Wait until the model has the question."""

        async def is_asked() -> bool:
            return bool(self.asked)

        await eventually(is_asked)

    async def prompts(self) -> list[str]:
        """The texts of all prompts that the server has of the session."""
        path = f"/session/{self.session.id}/message"
        messages = (await self.opencode._client.get(path, operation="look", timeout=PATIENCE)).json()
        users = [message for message in messages if message["info"]["role"] == "user"]
        return [part["text"] for message in users for part in message["parts"]]


@pytest.fixture(scope="module")
async def standing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """One server for all tests of this file, which has answered its first prompt: that one is slow."""
    async with listening() as model_site, listening() as front, new_http_client() as http, Relay.client() as between:
        model = Model(done)
        model_site.otherwise = model.answer
        server = OpenCodeServer(Path(PROGRAM), tmp_path_factory.mktemp("opencode"), f"{model_site.url}/v1")
        relay = Relay(server.url, between)
        front.otherwise = relay.answer
        opencode = OpenCode(ServiceClient(http, base_url=front.url, token=SecretStr(PASSWORD)))
        try:
            await server.start()
            scene = Scene(server, model, relay, opencode, await opencode.session("first"))
            await scene.ask()
            yield scene
        finally:
            await server.stop()


@pytest.fixture
async def scene(standing: Scene) -> Scene:
    """A session and a prompt of the test's own; the model and the way to the server are good again."""
    standing.model.answers = done
    standing.relay.before = standing.relay.after = lambda _request: None
    name = uuid.uuid4().hex
    return replace(standing, session=await standing.opencode.session(f"t-{name}"), prompt=f"Write plan {name}")


async def test_server_tells_its_health(scene: Scene) -> None:
    """Health, its version and the probe; a wrong password is an error of both, and is not shown."""
    assert (await scene.opencode.health()).version == OPENCODE
    assert (await scene.opencode.probe()).status in {"available", "degraded"}
    service = scene.opencode.service
    wrong = OpenCode(ServiceClient(service.http, base_url=service.base_url, token=SecretStr("Zq-wrong-one")))
    with pytest.raises(ServiceError, match="answered 401") as caught:
        await wrong.health()
    assert "Zq-wrong-one" not in str(caught.value)
    with pytest.raises(Terminal, match="token") as misconfigured:
        await wrong.probe()
    assert misconfigured.value.category is Category.MISSING_CONFIG


async def test_lost_answer_to_a_prompt_does_not_send_it_again(scene: Scene) -> None:
    """The server took the prompt, its answer was lost: the next attempt finds it."""
    lost = [502]
    scene.relay.after = lambda request: lost.pop() if lost and "prompt_async" in request.target else None
    with pytest.raises(ServiceError, match="answered 502"):
        await scene.ask()
    assert await scene.ask() == f"done: {scene.prompt}"
    assert await scene.ask() == f"done: {scene.prompt}"
    assert (scene.asked, await scene.prompts()) == (1, [scene.prompt])


async def test_late_prompt_is_the_same_message(scene: Scene) -> None:
    """A prompt that arrives after its retry was answered is neither kept nor asked again."""
    held: list[Received] = []

    def hold(request: Received) -> int | None:
        if "prompt_async" not in request.target or held:
            return None
        held.append(request)
        return 504

    scene.relay.before = hold
    with pytest.raises(ServiceError, match="answered 504"):
        await scene.ask()
    assert await scene.ask() == f"done: {scene.prompt}"
    assert (await scene.relay.forward(held[0])).is_success
    # The session's next prompt comes after it.
    await replace(scene, prompt="Another").ask()
    assert (scene.asked, await scene.prompts()) == (1, [scene.prompt, "Another"])


async def test_running_prompt_is_waited_for(scene: Scene) -> None:
    """An attempt that is out of time leaves the agent at work; the next one waits for the same answer."""
    release = asyncio.Event()

    async def answers(_prompt: str) -> str | int:
        await release.wait()
        return "at last"

    scene.model.answers = answers
    for _ in range(2):
        with pytest.raises(ServiceError) as caught:
            await scene.attempt(SHORT)
        assert caught.value.category is Category.TIMEOUT
    await scene.until_asked()
    release.set()
    assert await scene.ask() == "at last"
    assert (scene.asked, await scene.prompts()) == (1, [scene.prompt])


async def test_killed_server_takes_up_the_same_message(scene: Scene) -> None:
    """Killed in the middle of an answer and started again: the same message is asked again, and is there once."""

    async def hang(_prompt: str) -> str | int:
        await asyncio.Event().wait()
        return "never"

    scene.model.answers = hang
    with pytest.raises(ServiceError):
        await scene.attempt(SHORT)
    await scene.until_asked()
    await scene.server.kill()
    scene.model.answers = done
    await scene.server.start()
    assert await scene.ask() == f"done: {scene.prompt}"
    assert (scene.asked, await scene.prompts()) == (2, [scene.prompt])


@pytest.mark.parametrize("status", [400, 401])
async def test_failed_answer_is_classified_and_asked_for_again(scene: Scene, status: int) -> None:
    """What the model refuses is told with its status; the next attempt asks again, under the same message."""
    outcomes: list[str | int] = [status, "good"]

    async def answers(_prompt: str) -> str | int:
        return outcomes.pop(0)

    scene.model.answers = answers
    with pytest.raises(ServiceError, match=r"APIError: .*the model says no") as caught:
        await scene.ask()
    assert (caught.value.category, caught.value.status) == (Category.PROVIDER_4XX, status)
    assert await scene.ask() == "good"
    assert await scene.prompts() == [scene.prompt]


async def test_model_that_is_overloaded_is_asked_again_by_the_server(scene: Scene) -> None:
    """The server itself repeats what its model cannot answer now: to the client the prompt is at work."""
    outcomes: list[str | int] = [503, "good"]

    async def answers(_prompt: str) -> str | int:
        return outcomes.pop(0)

    scene.model.answers = answers
    assert await scene.ask() == "good"
    assert (scene.asked, await scene.prompts()) == (2, [scene.prompt])
