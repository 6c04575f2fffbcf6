"""The drill "break the token": classified retries, no partial untracked state, and a second run that completes.

With REDRIVE_TEST_GITEA="http://127.0.0.1:3000 <token of an administrator>" it also runs against that server.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import SecretStr

from redrive import Category, RunStatus, RunView
from redrive.connectors.gitea import Gitea
from redrive.dead_letters import LetterId
from redrive.http import ServiceClient, new_http_client
from redrive.settings import ServiceSettings
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import ended, run_until_settled
from tests.services.relay import Relay
from tests.unit.connectors.gitea_server import TOKEN, GiteaServer
from tests.unit.connectors.test_gitea import NO_SERVER, REAL
from tests.unit.redrive.conftest import Answer, Received, Server, reply

WRONG = "0" * 40
FILES = {"README.md": "# Ann's\n", "docs/plan.md": "1. Begin\n", "notes/ünï.txt": "✓\n"}


@dataclass(frozen=True)
class Place:
    """Where Gitea is, and what a workspace there is."""

    url: str
    token: str
    payload: dict[str, Any]

    def services(self, token: str | None = None) -> dict[str, ServiceSettings]:
        """The settings of a worker, with a token that may be broken."""
        return {"gitea": ServiceSettings(base_url=self.url, token=SecretStr(token or self.token))}

    @asynccontextmanager
    async def administrator(self) -> AsyncIterator[Gitea]:
        """The server as an administrator sees it."""
        async with new_http_client() as http:
            yield Gitea(ServiceClient(http, base_url=self.url, token=SecretStr(self.token)))

    async def content(self, path: str) -> bytes | None:
        """What is in a file of the workspace."""
        async with self.administrator() as gitea:
            found = await gitea.file(self.payload["user"], self.payload["repository"], path)
        return found.read() if found else None

    async def contents(self) -> dict[str, Any]:
        """What an administrator sees of the workspace."""
        user, repository = self.payload["user"], self.payload["repository"]
        async with self.administrator() as gitea:
            return {
                "user": await gitea.user(user) is not None,
                "repository": await gitea.repository(user, repository) is not None,
                "files": sorted([path for path in FILES if await gitea.file(user, repository, path) is not None]),
            }


NOTHING = {"user": False, "repository": False, "files": []}
EVERYTHING = {"user": True, "repository": True, "files": sorted(FILES)}


@dataclass
class Front:
    """What is between the worker and Gitea. It replaces the token of requests, or answers them with a status itself."""

    backend: Answer
    breaks: Callable[[Received], bool] = lambda _request: False
    outage: Callable[[Received], int | None] = lambda _request: None

    async def answer(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """Answer any request."""
        status = self.outage(request)
        if status is not None:
            await reply(status)(request, writer)
            return
        broken = {"authorization": f"Bearer {WRONG}"} if self.breaks(request) else {}
        await self.backend(replace(request, headers=request.headers | broken), writer)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason=NO_SERVER))])
async def front(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Front]:
    """The server in memory, and a real one if there is one, behind the tests' own server."""
    async with Relay.client() as http:
        made = Front(Relay(REAL[0], http).answer if request.param == "real" else GiteaServer().answer)
        server.otherwise = made.answer
        yield made


@pytest.fixture
def place(request: pytest.FixtureRequest, server: Server, front: Front) -> Place:
    """Where that server is, and a workspace that nobody has there."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    payload = {"user": name, "email": f"{name}@example.com", "repository": "work", "files": FILES}
    token = REAL[1] if "real" in request.node.callspec.id else TOKEN
    return Place(server.url, token, payload)


def failed(view: RunView) -> tuple[str, Category, str]:
    """Which step is parked, its category and its message."""
    step = next(step for step in view.steps if step.failure is not None)
    assert step.failure is not None
    return step.name, step.failure.category, step.failure.message


async def test_workspace_is_provisioned(worker: WorkerFactory, place: Place) -> None:
    """User, repository and files are there, and a second run finds them all and has the same result."""
    async with worker(services=place.services()) as running:
        first = await run_until_settled(running.redrive, "provision-workspace", place.payload)
        second = await run_until_settled(running.redrive, "provision-workspace", place.payload)
        outputs = [(await running.redrive.result(view.run_id)).output for view in (first, second)]
    assert (first.status, second.status) == (RunStatus.SUCCESS, RunStatus.SUCCESS)
    assert outputs[0] == outputs[1]
    assert outputs[0]["files"].keys() == FILES.keys()
    assert await place.contents() == EVERYTHING


async def test_broken_token_is_told_and_leaves_nothing(worker: WorkerFactory, place: Place) -> None:
    """A refused token is one attempt and a dead letter; the second run, with the right token, completes."""
    async with worker(services=place.services(token=WRONG)) as running:
        view = await run_until_settled(running.redrive, "provision-workspace", place.payload)
    step, category, message = failed(view)
    assert (view.status, step, category) == (RunStatus.DLQ_PENDING, "create-user", Category.PROVIDER_4XX)
    assert "answered 401" in message
    assert WRONG not in view.model_dump_json()
    assert await place.contents() == NOTHING
    async with worker(services=place.services()) as running:
        again = await run_until_settled(running.redrive, "provision-workspace", place.payload)
    assert again.status is RunStatus.SUCCESS
    assert await place.contents() == EVERYTHING


async def test_token_that_breaks_half_way_leaves_only_what_the_run_tells(
    worker: WorkerFactory, place: Place, front: Front
) -> None:
    """What the parked run says is done is what is there; a second run and the replayed first one both complete."""
    outages = [503, 502]
    front.outage = lambda request: outages.pop() if outages and request.target.endswith("/repos") else None
    front.breaks = lambda request: "/contents/docs" in request.target
    async with worker(services=place.services()) as running:
        view = await run_until_settled(running.redrive, "provision-workspace", place.payload)
        assert view.status is RunStatus.DLQ_PENDING
        assert [attempt.category for attempt in view.steps[1].attempts] == [Category.PROVIDER_5XX] * 2
        assert failed(view)[:2] == ("add-files", Category.PROVIDER_4XX)
        assert "answered 401" in failed(view)[2]
        assert [step.status.value for step in view.steps] == ["SUCCESS", "SUCCESS", "DLQ"]
        front.breaks = lambda _request: False
        assert await place.contents() == {"user": True, "repository": True, "files": ["README.md"]}
        second = await run_until_settled(running.redrive, "provision-workspace", place.payload)
        assert second.status is RunStatus.SUCCESS
        letter = LetterId(tenant=view.tenant, run_id=view.run_id, step="add-files")

        async def accepted() -> bool:
            command = running.redrive.dead_letters.replay(letter, requested_by="ada", reason="the token is fixed")
            return (await command).accepted

        await eventually(accepted)
        first = await ended(running.redrive, view.run_id)
    assert first.status is RunStatus.SUCCESS
    assert await place.contents() == EVERYTHING


async def test_workspace_that_differs_is_a_conflict(worker: WorkerFactory, place: Place) -> None:
    """A file of another content is not overwritten: the dead letter says which."""
    async with worker(services=place.services()) as running:
        await run_until_settled(running.redrive, "provision-workspace", place.payload | {"files": {"a.md": "one"}})
        other = place.payload | {"files": {"a.md": "two"}}
        view = await run_until_settled(running.redrive, "provision-workspace", other)
    step, category, message = failed(view)
    assert (step, category) == ("add-files", Category.CONFLICT)
    assert f"file 'a.md' of {place.payload['user']}/work" in message
    assert await place.content("a.md") == b"one"
