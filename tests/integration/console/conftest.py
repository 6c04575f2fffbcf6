"""One console for all tests of a file, in this process, and a tenant of its own for each test."""

import asyncio
import contextlib
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from redrive import Redrive, Registry
from redrive.access import Role
from redrive.connection import connect_temporal
from redrive.console.app import build_app
from redrive.postgres.database import ACCESS_ROLE, open_pool
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.access import TokenRequest, create_owner_token, create_token
from redrive.worker import running_worker
from tests.conftest import access_url, eventually, owner_url
from tests.integration.dead_letters.lab import SERVICES, Case, register
from tests.integration.events import projectors
from tests.integration.events.projectors import Tables
from tests.integration.store.letters import new_tenant

ADDRESS = "http://console.test"


@pytest.fixture(scope="package")
def console_settings(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings for the session's servers, with a task queue of the file's own."""
    return Settings(
        temporal_address=stack.temporal_address,
        database_url=stack.database_url,
        access_database_url=stack.access_url,
        state_dir=tmp_path_factory.mktemp("console"),
        task_queue=f"queue-{new_tenant()}",
        rate_limit="100000/minute",
        stranger_limit="100000/minute",
    )


@pytest.fixture(scope="package")
async def app(console_settings: Settings) -> AsyncIterator[FastAPI]:
    """The application, as the console's process builds it."""
    app = build_app(console_settings)
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture(scope="package")
async def pool(stack: StackInfo) -> AsyncIterator[Pool]:
    """The application's connections to the records."""
    async with await open_pool(stack.database_url.get_secret_value()) as pool:
        yield pool


@pytest.fixture(scope="package")
async def access(stack: StackInfo) -> AsyncIterator[Pool]:
    """Connections by the login that lets people in."""
    async with await open_pool(access_url(stack), role=ACCESS_ROLE) as pool:
        yield pool


@pytest.fixture(scope="package")
def tables() -> Tables:
    """What projectors of events have made, and how they are to fail."""
    return Tables()


@pytest.fixture(scope="package")
async def lab(console_settings: Settings, tables: Tables) -> AsyncIterator[Redrive]:
    """A worker that knows the laboratory's pipelines and projectors of events, and a client of it."""
    registry = Registry()
    register(registry)
    projectors.register(registry, tables)
    async with running_worker(console_settings, registry):
        client = await connect_temporal(console_settings)
        yield Redrive(client, task_queue=console_settings.task_queue, registry=registry)


@pytest.fixture
async def case(lab: Redrive, console_settings: Settings, stack: StackInfo, tenant: str) -> AsyncIterator[Case]:
    """A run to be, of the test's tenant."""
    temporal = await connect_temporal(console_settings)
    made = Case(lab, temporal, owner_url(stack), console_settings.task_queue)
    made.tenant = tenant
    yield made
    del SERVICES[made.name]


@pytest.fixture
def tenant() -> str:
    """A tenant of the test's own."""
    return new_tenant()


def client_of(app: FastAPI, token: str | None = None, **options: Any) -> httpx.AsyncClient:
    """Return a client of the application, with a token or without."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=ADDRESS, headers=headers, **options)


MakeToken = Callable[..., Awaitable[str]]


@pytest.fixture
def make_token(access: Pool, stack: StackInfo, tenant: str) -> MakeToken:
    """Make a token of a role in the test's tenant, or in another, and return its secret."""

    async def make(role: Role = Role.ADMIN, **changes: Any) -> str:
        wish = TokenRequest(
            **{
                "name": f"test {role.value}",
                "role": role,
                "tenant": None if role is Role.OWNER else tenant,
                "created_by": "the tests",
                "person": f"member:{uuid.uuid4()}",
                "lasts": timedelta(hours=1),
                **changes,
            }
        )
        if role is Role.OWNER:
            return (await create_owner_token(owner_url(stack), wish)).secret
        return (await create_token(access, wish)).secret

    return make


@pytest.fixture
async def admin(app: FastAPI, make_token: MakeToken) -> AsyncIterator[httpx.AsyncClient]:
    """An admin of the test's tenant."""
    async with client_of(app, await make_token()) as client:
        yield client


@pytest.fixture
async def owner(app: FastAPI, make_token: MakeToken) -> AsyncIterator[httpx.AsyncClient]:
    """An owner: all tenants."""
    async with client_of(app, await make_token(Role.OWNER)) as client:
        yield client


@pytest.fixture
async def nobody(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody without a token."""
    async with client_of(app) as client:
        yield client


class QuietServer(uvicorn.Server):
    """A server that leaves the signals to the tests."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """Serve an application over real HTTP, in this process, and yield its address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = QuietServer(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve([listening]))
        await eventually(lambda: asyncio.sleep(0, server.started))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest.fixture(scope="package")
async def live(app: FastAPI, lab: Redrive) -> AsyncIterator[str]:
    """The address of the application over real HTTP, with a worker behind it."""
    async with served(app) as address:
        yield address
