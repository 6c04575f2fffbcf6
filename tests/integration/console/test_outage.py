"""Starts over HTTP while Temporal is frozen: 503 and when to come back; then the same key has its one run."""

import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import psutil
import pytest

from redrive import Redrive, Registry, RunStatus
from redrive.access import Role
from redrive.connection import connect_temporal
from redrive.console.app import build_app
from redrive.console.problems import MEDIA_TYPE
from redrive.postgres.database import ACCESS_ROLE, open_pool
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from redrive.starter.stack.state import StackInfo
from redrive.store.access import TokenRequest, create_token
from redrive.worker import running_worker
from tests.conftest import access_url, owner_url
from tests.integration.console.conftest import client_of
from tests.integration.console.test_runs import RUNS, order_of
from tests.integration.dead_letters.lab import SERVICES, Case, register

STEPS = ("first", "second", "third")


@pytest.fixture
async def lone_stack() -> AsyncIterator[StackInfo]:
    """Servers of this test's own: it freezes one."""
    with tempfile.TemporaryDirectory(prefix="redrive-test-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)
        async with Stack(Settings(), state_dir=Path(directory) / "state", workers=0) as running:
            yield running.info


@pytest.fixture
async def lone_case(lone_stack: StackInfo, tmp_path: Path) -> AsyncIterator[tuple[Case, httpx.AsyncClient]]:
    """A worker, a run to be, and an admin at a console, all on those servers."""
    settings = Settings(
        temporal_address=lone_stack.temporal_address,
        database_url=lone_stack.database_url,
        access_database_url=lone_stack.access_url,
        state_dir=tmp_path,
    )
    registry = Registry()
    register(registry)
    temporal = await connect_temporal(settings)
    redrive = Redrive(temporal, task_queue=settings.task_queue, registry=registry)
    case = Case(redrive, temporal, owner_url(lone_stack), settings.task_queue)
    app = build_app(settings)
    async with (
        running_worker(settings, registry),
        app.router.lifespan_context(app),
        client_of(app, await _token(access_url(lone_stack), case.tenant)) as admin,
    ):
        yield case, admin
    del SERVICES[case.name]


async def _token(url: str, tenant: str) -> str:
    hour = timedelta(hours=1)
    wish = TokenRequest(name="x", role=Role.ADMIN, tenant=tenant, created_by="x", person="member:x", lasts=hour)
    async with await open_pool(url, max_size=1, role=ACCESS_ROLE) as pool:
        return (await create_token(pool, wish)).secret


@contextlib.contextmanager
def frozen(address: str) -> Iterator[None]:
    """Freeze the Temporal server that listens there: it is there, and silent."""
    port = int(address.rpartition(":")[2])
    servers = [child for child in psutil.Process().children(recursive=True) if _listens(child, port)]
    assert len(servers) == 1
    os.kill(servers[0].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(servers[0].pid, signal.SIGCONT)


def _listens(child: psutil.Process, port: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(
            each.laddr.port == port and each.status == psutil.CONN_LISTEN for each in child.net_connections("tcp")
        )
    return False


@pytest.mark.timeout(240)
async def test_a_start_that_is_not_resolved_is_answered_503(
    lone_stack: StackInfo, lone_case: tuple[Case, httpx.AsyncClient]
) -> None:
    """A new key and a known one are told to come back; when Temporal answers again, each has its one run."""
    case, admin = lone_case
    known, fresh = ({"Idempotency-Key": f"{what}:{case.name}"} for what in ("known", "fresh"))
    case.service.broken.add("second")
    case.run_id = (await admin.post(RUNS, json=order_of(case), headers=known)).json()["run_id"]
    await case.until(RunStatus.DLQ_PENDING)
    with frozen(lone_stack.temporal_address):
        refused = [await admin.post(RUNS, json=order_of(case), headers=key) for key in (known, fresh)]
    for answer in refused:
        assert (answer.status_code, answer.headers["Content-Type"]) == (503, MEDIA_TYPE)
        assert int(answer.headers["Retry-After"]) > 0
        assert answer.json()["code"] in {"outcome_unknown", "unavailable"}
        assert "same key" in answer.json()["action"]
    case.mend()
    again = await admin.post(RUNS, json=order_of(case), headers=known)
    assert (again.status_code, again.json()["run_id"]) == (200, case.run_id)
    late = await admin.post(RUNS, json=order_of(case), headers=fresh)
    same = await admin.post(RUNS, json=order_of(case), headers=fresh)
    # 200 when Temporal carried out what it was asked while it was frozen.
    assert (late.status_code in {200, 201}, same.status_code) == (True, 200)
    parked, case.run_id = case.run_id, late.json()["run_id"]
    await case.until(RunStatus.SUCCESS)
    assert same.json()["run_id"] == case.run_id
    calls = [(call.run_id, call.step) for call in case.service.calls]
    assert calls == [(parked, "first"), (parked, "second"), *((case.run_id, step) for step in STEPS)]
