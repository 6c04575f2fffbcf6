"""Gitea: every create can be repeated, conflicts say what differs, and a server that is not ready is waited for.

With REDRIVE_TEST_GITEA="http://127.0.0.1:3000 <token of an administrator>" the tests also run against that server.
"""

import os
import uuid
from dataclasses import dataclass
from datetime import timedelta

import pytest
from pydantic import SecretStr
from structlog.testing import LogCapture

from redrive.categories import Category
from redrive.connectors.gitea import File, Gitea, Version
from redrive.errors import ServiceError, Terminal
from tests.unit.connectors.conftest import ClientFactory
from tests.unit.connectors.gitea_server import TOKEN, Found, GiteaServer
from tests.unit.redrive.conftest import Received, Server, reply

REAL = os.environ.get("REDRIVE_TEST_GITEA", "").split()
NO_SERVER = "no server: `make real-services` builds Gitea and runs this"


@dataclass(frozen=True)
class Stage:
    """A server, a client of it, and a name that nobody has there."""

    gitea: Gitea
    name: str

    @property
    def email(self) -> str:
        """The address of the user of that name."""
        return f"{self.name}@example.com"

    async def repository(self) -> None:
        """Make a user with a repository `work`."""
        await self.gitea.create_user(self.name, self.email)
        await self.gitea.create_repository(self.name, "work")


@pytest.fixture
def fake(server: Server) -> GiteaServer:
    """The server in memory."""
    made = GiteaServer()
    server.otherwise = made.answer
    return made


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason=NO_SERVER))])
def stage(request: pytest.FixtureRequest, client: ClientFactory, fake: GiteaServer) -> Stage:
    """A client of the server in memory, and of a real one if there is one."""
    service = client(token=SecretStr(TOKEN))
    if request.param == "real":
        service = client(base_url=REAL[0], token=SecretStr(REAL[1]))
    return Stage(Gitea(service), f"t-{uuid.uuid4().hex[:10]}")


async def test_user_is_created_once(stage: Stage) -> None:
    """A second create finds the user; another letter case of name and address is the same user."""
    assert await stage.gitea.user(stage.name) is None
    made = await stage.gitea.create_user(stage.name, stage.email)
    again = await stage.gitea.create_user(stage.name, stage.email.upper(), SecretStr("Another-pass-1"))
    assert (made.login, made.id) == (stage.name, again.id)
    assert await stage.gitea.user(stage.name) == again


async def test_user_with_another_address_is_a_conflict(stage: Stage) -> None:
    """The error says what is there and what was wanted, and the user stays as it is."""
    await stage.gitea.create_user(stage.name, stage.email)
    with pytest.raises(ServiceError, match=rf"email '{stage.email}', not 'other@") as caught:
        await stage.gitea.create_user(stage.name, "other@example.com")
    assert caught.value.category is Category.CONFLICT


async def test_taken_address_is_told(stage: Stage) -> None:
    """A user that cannot be made, though none has the name, is a refusal with the server's reason."""
    await stage.gitea.create_user(stage.name, stage.email)
    with pytest.raises(ServiceError, match="e-mail already in use") as caught:
        await stage.gitea.create_user(f"{stage.name}-2", stage.email)
    assert caught.value.category is Category.VALIDATION


async def test_repository_is_created_once(stage: Stage) -> None:
    """A second create finds the repository; one that differs is a conflict that names the fields."""
    await stage.repository()
    made = await stage.gitea.create_repository(stage.name, "work")
    assert made.full_name == f"{stage.name}/work"
    assert await stage.gitea.repository(stage.name, "work") == made
    with pytest.raises(ServiceError, match="private True, not False; description '', not 'mine'") as caught:
        await stage.gitea.create_repository(stage.name, "work", private=False, description="mine")
    assert caught.value.category is Category.CONFLICT


async def test_repository_of_nobody_is_refused(stage: Stage) -> None:
    """Without its owner there is no repository, and nothing to find."""
    with pytest.raises(ServiceError, match="answered 404") as caught:
        await stage.gitea.create_repository(stage.name, "work")
    assert caught.value.category is Category.PROVIDER_4XX
    assert await stage.gitea.repository(stage.name, "work") is None


@pytest.mark.parametrize("content", [b"", b"hello\n", bytes(range(256)), "grüß dich ✓".encode(), b"x" * 700_000])
async def test_file_is_created_once(stage: Stage, content: bytes) -> None:
    """The first file makes the branch; the same bytes again are found, other bytes are a conflict."""
    await stage.repository()
    made = await stage.gitea.create_file(stage.name, "work", "docs/a b.md", content, message="first")
    again = await stage.gitea.create_file(stage.name, "work", "docs/a b.md", content)
    assert (made.path, made.sha) == ("docs/a b.md", again.sha)
    with pytest.raises(ServiceError, match="is there with other content: sha") as caught:
        await stage.gitea.create_file(stage.name, "work", "docs/a b.md", content + b"!")
    assert caught.value.category is Category.CONFLICT


async def test_directory_in_the_place_of_a_file_is_a_conflict(stage: Stage) -> None:
    """A path that is a directory is not a file with other content."""
    await stage.repository()
    await stage.gitea.create_file(stage.name, "work", "docs/a.md", b"x")
    with pytest.raises(ServiceError) as caught:
        await stage.gitea.create_file(stage.name, "work", "docs", b"x")
    assert caught.value.category is Category.CONFLICT
    assert await stage.gitea.file(stage.name, "work", "docs/b.md") is None


async def test_content_of_a_file_is_read() -> None:
    """What the server gives in base64 is read as bytes."""
    assert File(path="a", sha="b", content="aGVsbG8=").read() == b"hello"


@pytest.mark.parametrize(
    ("owner", "repository", "path"),
    [
        ("a/b", "work", "x"),
        ("..", "work", "x"),
        ("a", "", "x"),
        ("a", "work", "/x"),
        ("a", "work", ""),
        ("a", "w", "../x"),
    ],
)
async def test_name_that_leads_elsewhere_is_refused(
    client: ClientFactory, server: Server, owner: str, repository: str, path: str
) -> None:
    """A name or path from a payload cannot name another part of the API."""
    with pytest.raises(Terminal):
        await Gitea(client()).create_file(owner, repository, path, b"")
    assert server.received == []


async def test_refused_token_is_terminal(stage: Stage, fake: GiteaServer, client: ClientFactory) -> None:
    """A wrong token is a classified error that does not show it, and nothing is created."""
    wrong = Gitea(client(base_url=stage.gitea.service.base_url, token=SecretStr("0" * 40)))
    with pytest.raises(ServiceError, match="answered 401") as caught:
        await wrong.create_user(stage.name, stage.email)
    assert (caught.value.category, caught.value.status) == (Category.PROVIDER_4XX, 401)
    assert await stage.gitea.user(stage.name) is None


async def test_probe_notices_a_wrong_token(stage: Stage, client: ClientFactory) -> None:
    """A server that is healthy cannot be used with a token that it refuses: that is an error of the set-up."""
    assert (await stage.gitea.probe()).http_status == 200
    wrong = Gitea(client(base_url=stage.gitea.service.base_url, token=SecretStr("0" * 40)))
    with pytest.raises(Terminal, match="answered 401") as caught:
        await wrong.probe()
    assert caught.value.category is Category.MISSING_CONFIG


async def test_what_is_there_already_is_no_failure_in_the_log(stage: Stage, logged: LogCapture) -> None:
    """Looking for what is absent, and creating what exists, are answers and not warnings."""
    await stage.gitea.user(stage.name)
    await stage.repository()
    await stage.repository()
    assert {entry["event"] for entry in logged.entries} == {"service.called"}


async def test_repository_in_the_way_is_told(client: ClientFactory, server: Server) -> None:
    """A conflict with something that cannot be seen, such as files without a repository, is told as it is."""
    server.on("/api/v1/admin/users/ann/repos", reply(409, {"message": "Files already exist for this repository."}))
    server.on("/api/v1/repos/ann/work", reply(404, {"message": "not found"}))
    with pytest.raises(ServiceError, match="Files already exist") as caught:
        await Gitea(client()).create_repository("ann", "work")
    assert caught.value.category is Category.CONFLICT


async def test_answer_of_something_else_is_told(client: ClientFactory, server: Server) -> None:
    """A base URL that leads to another server is a clear error."""
    server.on("/api/v1/users/ann", reply(200, {"hello": "world"}))
    with pytest.raises(ServiceError, match="base_url") as caught:
        await Gitea(client()).user("ann")
    assert caught.value.category is Category.SERIALIZATION


async def test_ready_server_tells_its_version(stage: Stage) -> None:
    """A server that is ready answers at once."""
    assert (await stage.gitea.wait_ready()).gitea >= (1, 20)


async def test_server_is_waited_for(client: ClientFactory, server: Server, fake: GiteaServer) -> None:
    """A server that is starting answers 503; the first good answer ends the wait."""
    starting = [503, 503]

    def before(request: Received) -> Found | None:
        return (starting.pop(), {"status": "fail"}) if starting else None

    fake.before = before
    assert (await Gitea(client()).wait_ready()).version == "1.26.0"
    assert len(server.received) == 4


async def test_wait_ends(client: ClientFactory, fake: GiteaServer) -> None:
    """A server that does not get ready is a transient error after the time that was given."""
    fake.before = lambda _request: (503, {"status": "fail"})
    with pytest.raises(ServiceError, match="answered 503") as caught:
        await Gitea(client()).wait_ready(timedelta(seconds=0.6))
    assert caught.value.category is Category.PROVIDER_5XX


async def test_wrong_address_is_not_waited_for(client: ClientFactory, server: Server) -> None:
    """What is not Gitea will not become it."""
    server.on("/api/healthz", reply(404))
    with pytest.raises(ServiceError, match="answered 404"):
        await Gitea(client()).wait_ready(timedelta(seconds=60))


@pytest.mark.parametrize(
    ("text", "numbers", "is_forgejo"),
    [
        ("1.26.0", (1, 26, 0), False),
        ("1.22.1+dev-12-gabc", (1, 22, 1), False),
        ("v1.21", (1, 21), False),
        ("9.0.3+gitea-1.22.0", (1, 22, 0), True),
        ("development", (), False),
    ],
)
def test_versions_of_both_are_read(text: str, numbers: tuple[int, ...], is_forgejo: bool) -> None:
    """Forgejo tells the Gitea that it is compatible with; that is what is compared."""
    version = Version(version=text)
    assert (version.gitea, version.is_forgejo) == (numbers, is_forgejo)


@pytest.mark.parametrize("version", ["1.18.5", "development", "7.0.0+gitea-1.19.0"])
async def test_old_server_is_refused(client: ClientFactory, fake: GiteaServer, version: str) -> None:
    """A server without what is needed is a problem of its set-up."""
    fake.version = version
    with pytest.raises(Terminal, match=r"1\.20 or later is needed") as caught:
        await Gitea(client()).version()
    assert caught.value.category is Category.MISSING_CONFIG
