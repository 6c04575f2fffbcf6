"""The drill "break the token": classified retries, no partial untracked state, and a second run that completes.

With REDRIVE_TEST_GITEA="http://127.0.0.1:3000 <token of an administrator>" it also runs against that server.
"""

import uuid
from dataclasses import dataclass
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
from tests.unit.connectors.gitea_server import TOKEN, Found, GiteaServer
from tests.unit.connectors.test_gitea import REAL
from tests.unit.redrive.conftest import Received, Server

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

    async def contents(self) -> dict[str, Any]:
        """What an administrator sees of the workspace."""
        user, repository = self.payload["user"], self.payload["repository"]
        async with new_http_client() as http:
            gitea = Gitea(ServiceClient(http, base_url=self.url, token=SecretStr(self.token)))
            return {
                "user": await gitea.user(user) is not None,
                "repository": await gitea.repository(user, repository) is not None,
                "files": sorted([path for path in FILES if await gitea.file(user, repository, path) is not None]),
            }


NOTHING = {"user": False, "repository": False, "files": []}
EVERYTHING = {"user": True, "repository": True, "files": sorted(FILES)}


@pytest.fixture
def fake(server: Server) -> GiteaServer:
    """The server in memory."""
    made = GiteaServer()
    server.otherwise = made.answer
    return made


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="no server"))])
def place(request: pytest.FixtureRequest, server: Server, fake: GiteaServer) -> Place:
    """The server in memory, and a real one if there is one."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    payload = {"user": name, "email": f"{name}@example.com", "repository": "work", "files": FILES}
    return Place(REAL[0], REAL[1], payload) if request.param == "real" else Place(server.url, TOKEN, payload)


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
    async with worker(services=place.services(token="0" * 40)) as running:
        view = await run_until_settled(running.redrive, "provision-workspace", place.payload)
    step, category, message = failed(view)
    assert (view.status, step, category) == (RunStatus.DLQ_PENDING, "create-user", Category.PROVIDER_4XX)
    assert "answered 401" in message
    assert "0" * 40 not in view.model_dump_json()
    assert await place.contents() == NOTHING
    async with worker(services=place.services()) as running:
        again = await run_until_settled(running.redrive, "provision-workspace", place.payload)
    assert again.status is RunStatus.SUCCESS
    assert await place.contents() == EVERYTHING


async def test_token_that_breaks_half_way_leaves_only_what_the_run_tells(
    worker: WorkerFactory, server: Server, fake: GiteaServer
) -> None:
    """What the parked run says is done is what is there; a second run and the replayed first one both complete."""
    payload = {"user": "ann", "email": "ann@example.com", "repository": "work", "files": FILES}
    place = Place(server.url, TOKEN, payload)
    outages = [503, 502]
    is_broken = True

    def before(request: Received) -> Found | None:
        if "/contents/docs" in request.target and is_broken:
            return 401, {"message": "invalid username, password or token"}
        return (outages.pop(), {}) if outages and request.target.endswith("/repos") else None

    fake.before = before
    async with worker(services=place.services()) as running:
        view = await run_until_settled(running.redrive, "provision-workspace", payload)
        assert view.status is RunStatus.DLQ_PENDING
        assert [attempt.category for attempt in view.steps[1].attempts] == [Category.PROVIDER_5XX] * 2
        assert failed(view)[:2] == ("add-files", Category.PROVIDER_4XX)
        assert [step.status.value for step in view.steps] == ["SUCCESS", "SUCCESS", "DLQ"]
        assert {"users": set(fake.users), "repositories": set(fake.repositories), "files": len(fake.files)} == {
            "users": {"ann"},
            "repositories": {"ann/work"},
            "files": 1,
        }
        is_broken = False
        second = await run_until_settled(running.redrive, "provision-workspace", payload)
        assert second.status is RunStatus.SUCCESS
        letter = LetterId(tenant=view.tenant, run_id=view.run_id, step="add-files")

        async def accepted() -> bool:
            command = running.redrive.dead_letters.replay(letter, requested_by="ada", reason="the token is fixed")
            return (await command).accepted

        await eventually(accepted)
        first = await ended(running.redrive, view.run_id)
    assert first.status is RunStatus.SUCCESS
    assert {path: fake.files["ann/work", "main", path].decode() for path in FILES} == FILES
    assert (len(fake.users), len(fake.repositories), len(fake.files)) == (1, 1, 3)


async def test_workspace_that_differs_is_a_conflict(worker: WorkerFactory, fake: GiteaServer, server: Server) -> None:
    """A file of another content is not overwritten: the dead letter says which."""
    payload = {"user": "ann", "email": "ann@example.com", "repository": "work", "files": {"a.md": "one"}}
    place = Place(server.url, TOKEN, payload)
    async with worker(services=place.services()) as running:
        await run_until_settled(running.redrive, "provision-workspace", payload)
        view = await run_until_settled(running.redrive, "provision-workspace", payload | {"files": {"a.md": "two"}})
    step, category, message = failed(view)
    assert (step, category) == ("add-files", Category.CONFLICT)
    assert "file 'a.md' of ann/work" in message
    assert fake.files["ann/work", "main", "a.md"] == b"one"
