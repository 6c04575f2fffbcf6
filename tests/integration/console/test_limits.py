"""What one tenant, and one address that nobody knows, may use: counted over all consoles, and before the database."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from redrive.console.app import build_app
from redrive.console.limits import Rates
from redrive.postgres.database import DeadlinePool
from redrive.postgres.tenancy import Pool
from redrive.settings import Settings, TenantLimits
from tests.conftest import eventually
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.console.test_runs import RUNS, order_of
from tests.integration.dead_letters.lab import Case

NOBODY = "postgresql://nobody:nothing@127.0.0.1:9/none"
MakeClients = Callable[..., contextlib.AbstractAsyncContextManager[list[httpx.AsyncClient]]]


@pytest.fixture
def consoles(console_settings: Settings, make_token: MakeToken) -> MakeClients:
    """Two consoles with limits of the test's own, and an admin of the test's tenant at each, with a token each."""

    @contextlib.asynccontextmanager
    async def make(**limits: Any) -> AsyncIterator[list[httpx.AsyncClient]]:
        settings = console_settings.model_copy(update={"tenant_limits": {"*": TenantLimits(**limits)}})
        async with contextlib.AsyncExitStack() as opened:
            clients = []
            for _ in range(2):
                app = build_app(settings)
                await opened.enter_async_context(app.router.lifespan_context(app))
                clients.append(await opened.enter_async_context(client_of(app, await make_token())))
            yield clients

    return make


def _limit(answer: httpx.Response) -> str | None:
    """Return the limit that an answer names, if it is a refusal."""
    if answer.status_code != 429:
        return None
    assert answer.json()["code"] == "tenant_limit"
    assert int(answer.headers["retry-after"]) >= 1
    return str(answer.json()["detail"]).partition("REDRIVE_TENANT_LIMITS: ")[2].rstrip(")")


async def test_lists_are_counted_for_the_tenant(consoles: MakeClients) -> None:
    """Two tokens at two consoles have one limit, and the refusal names it."""
    async with consoles(lists=0.02) as (one, other):
        assert (await one.get("/api/v1/workflow-dlq")).status_code == 200
        assert _limit(await one.get("/api/v1/audit")) == "lists"
        assert _limit(await other.get(RUNS)) == "lists"
        assert (await other.get("/api/v1/me")).status_code == 200


async def test_most_requests_ask_the_database_for_nothing(consoles: MakeClients, pool: Pool, tenant: str) -> None:
    """A console takes tokens in batches: of five lists, one has asked for tokens."""
    async with consoles(lists=100) as (one, _):
        for _ in range(5):
            assert (await one.get("/api/v1/workflow-dlq")).status_code == 200
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT set_config('redrive.tenant', $1, true)", tenant)
        left = await connection.fetchval("SELECT tokens FROM tenant_tokens WHERE kind = 'lists'")
    assert left == 90


async def test_starts_are_counted_for_the_tenant(consoles: MakeClients, case: Case) -> None:
    """The second start in a while is refused by the other console."""
    async with consoles(starts=0.02) as (one, other):
        assert (await one.post(RUNS, json=order_of(case))).status_code == 201
        assert _limit(await other.post(RUNS, json=order_of(case))) == "starts"


async def test_open_runs_are_counted_for_the_tenant(consoles: MakeClients, case: Case) -> None:
    """With one run open the second is refused, by a console that has not started the first, until that has ended."""
    await case.park("second")
    async with consoles(open_runs=1) as (one, other):

        async def is_listed() -> bool:
            return bool((await one.get(RUNS)).json()["runs"])

        await eventually(is_listed)
        for client in (one, other):
            assert _limit(await client.post(RUNS, json=order_of(case))) == "open_runs"
        await case.redrive.cancel(case.run_id, reason="the tests")

        async def starts() -> bool:
            return (await one.post(RUNS, json=order_of(case))).status_code == 201

        await eventually(starts)


async def test_a_tenant_may_have_limits_of_its_own(
    console_settings: Settings, make_token: MakeToken, tenant: str
) -> None:
    """What is not named for it is as for all others."""
    limits = {"*": TenantLimits(lists=0.02, starts=7), tenant: TenantLimits(lists=None)}
    settings = console_settings.model_copy(update={"tenant_limits": limits})
    assert settings.limits_of(tenant).starts == 7
    app = build_app(settings)
    async with app.router.lifespan_context(app), client_of(app, await make_token()) as admin:
        for _ in range(3):
            assert (await admin.get("/api/v1/workflow-dlq")).status_code == 200


async def test_without_a_database_a_console_counts_for_itself() -> None:
    """Starts go on, at the tenant's rate, while nobody answers there."""
    rates = Rates(DeadlinePool(NOBODY, 1))
    assert [await rates.take("acme", "starts", 2.0) for _ in range(4)][:3] == [True, True, False]


@pytest.fixture
async def strict(console_settings: Settings) -> AsyncIterator[FastAPI]:
    """A console that lets an address try three times."""
    app = build_app(console_settings.model_copy(update={"stranger_limit": "3/hour"}))
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
def asked(strict: FastAPI, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Each time that the strict console asked its database."""
    app_state, asked = strict.state.app_state, list[None]()

    def counted(pool: Callable[[], Awaitable[Pool]]) -> Callable[[], Awaitable[Pool]]:
        async def open_and_count() -> Pool:
            asked.append(None)
            return await pool()

        return open_and_count

    for name in ("pool", "access"):
        monkeypatch.setattr(app_state, name, counted(getattr(app_state, name)))
    return asked


@pytest.mark.parametrize("path", ["/readyz", "/sign-in/link/rdl_wrong", RUNS], ids=["readyz", "link", "bad-token"])
async def test_strangers_are_counted_before_the_database_is_asked(
    strict: FastAPI, asked: list[None], path: str
) -> None:
    """Of twenty requests at once three get as far as the database; the others are told when to come back."""
    async with client_of(strict, "rdt_wrong") as stranger:
        answers = await asyncio.gather(*(stranger.get(path) for _ in range(20)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert (len(refused), len(asked)) == (17, 3)
    assert all(answer.headers["retry-after"] for answer in refused)
    assert "REDRIVE_STRANGER_LIMIT" in refused[0].text


async def test_strangers_do_not_lock_out_those_who_are_known(strict: FastAPI, make_token: MakeToken) -> None:
    """Behind one proxy all have one address: a token that was good stays good, and never counts as a stranger's."""
    async with client_of(strict, await make_token()) as known, client_of(strict, "rdt_wrong") as stranger:
        for _ in range(5):
            assert (await known.get("/api/v1/me")).status_code == 200
        statuses = [(await stranger.get("/api/v1/me")).status_code for _ in range(4)]
        assert statuses == [401, 401, 401, 429]
        assert (await known.get("/api/v1/me")).status_code == 200
        metrics = (await known.get("/metrics")).text
    assert 'redrive_console_refusals_total{limit="stranger_limit"} 1.0' in metrics
