"""deploy/postgres/roles.sh on a real server, as the postgres image runs it: the logins of the compose stack."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import asyncpg
import pytest
from structlog.testing import capture_logs

from redrive.errors import Unavailable
from redrive.postgres.database import ACCESS_ROLE, APP_ROLE, connect, open_pool
from redrive.starter.stack.children import Program, Supervisor
from redrive.starter.stack.placement import find_postgres, place, server_account
from redrive.starter.stack.ports import LOOPBACK, listens, reserve
from redrive.starter.stack.postgres import Passwords, Postgres, create_data
from redrive.starter.stack.state import StateDirectory
from redrive.store.migrate import migrate
from tests.conftest import eventually

SCRIPT = Path(__file__).parents[3] / "deploy/postgres/roles.sh"
NAMES = ("POSTGRES", "TEMPORAL_DB", "REDRIVE_DB", "REDRIVE_APP_DB", "REDRIVE_CONSOLE_DB")
PASSWORDS = {f"{name}_PASSWORD": f"{name.lower()}-hush" for name in NAMES}


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """An empty server with the superuser `postgres`, on which the script was run: its host and port."""
    with tempfile.TemporaryDirectory(prefix="redrive-test-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o711)
        with StateDirectory(Path(path) / "state") as state:
            placement = place(state, find_postgres(), server_account())
            reservation = reserve("PostgreSQL", asked=None, preferred=15_800)
            await create_data(placement, user="postgres", password=PASSWORDS["POSTGRES_PASSWORD"])
            supervisor = Supervisor(state.logs)
            command = Postgres(placement, reservation.number, Passwords("", "", "")).command
            ready = partial(listens, reservation.number)
            program = Program("postgres", "PostgreSQL", command, ready, directory=Path("/"), account=placement.account)
            try:
                await supervisor.start(program)
                await eventually(partial(_takes_connections, reservation.number))
                await _run_script(placement.program("psql"), reservation.number)
                yield f"{LOOPBACK}:{reservation.number}"
            finally:
                await supervisor.stop()
                reservation.close()


async def _takes_connections(port: int) -> bool:
    try:
        password = PASSWORDS["POSTGRES_PASSWORD"]
        connection = await asyncpg.connect(host=LOOPBACK, port=port, user="postgres", password=password)
    except asyncpg.CannotConnectNowError:
        return False
    await connection.close()
    return True


async def _run_script(psql: str, port: int) -> None:
    environment = os.environ | PASSWORDS
    environment |= {"PATH": f"{Path(psql).parent}:{os.environ['PATH']}", "PGHOST": LOOPBACK, "PGPORT": str(port)}
    environment["PGPASSWORD"] = PASSWORDS["POSTGRES_PASSWORD"]
    process = await asyncio.create_subprocess_exec("sh", str(SCRIPT), env=environment)
    assert await process.wait() == 0


async def test_each_login_does_its_own_work_and_no_more(server: str) -> None:
    """The owner migrates without making roles, application and console work unwarned, Temporal stays outside."""

    def url(login: str, name: str) -> str:
        return f"postgresql://{login}:{PASSWORDS[f'{name}_PASSWORD']}@{server}/redrive"

    assert await migrate(url("redrive", "REDRIVE_DB"))
    with capture_logs() as logs:
        for login, name in ((APP_ROLE, "REDRIVE_APP_DB"), (ACCESS_ROLE, "REDRIVE_CONSOLE_DB")):
            async with await open_pool(url(login, name), max_size=1, role=login) as pool:
                assert await pool.fetchval("SELECT session_user") == login
    assert logs == []
    with pytest.raises(Unavailable, match="permission denied for database"):
        await connect(url("temporal", "TEMPORAL_DB"))
