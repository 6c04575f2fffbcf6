"""How the lists are read: from an index in their order, never all rows. `tests.bench.letters_explain` has figures."""

from collections.abc import AsyncIterator

import pytest

from redrive.postgres.database import connect, open_pool
from redrive.postgres.tenancy import Pool
from redrive.store.migrate import migrate
from tests.bench.letters_explain import calls, explain, load
from tests.integration.store.conftest import new_database

ROWS = 20_000
CALLS = calls(ROWS)
# They look at so many rows on purpose: the newest open ones, or those in which a text may be.
BOUNDED = {"groups", "groups of all tenants", "stats", "stats of all tenants", "search by part, none"}
TENANTS_TIMES_PAGE = 92 * 51


@pytest.fixture(scope="module")
async def one_connection(server_url: str) -> AsyncIterator[Pool]:
    """The application's only connection to a database with many dead letters."""
    url = await new_database(server_url)
    await migrate(url)
    owner = await connect(url)
    await load(owner, ROWS)
    await owner.close()
    async with await open_pool(url, max_size=1) as pool:
        yield pool


@pytest.mark.parametrize("name", CALLS)
async def test_query_uses_its_index(one_connection: Pool, name: str) -> None:
    """No list reads a table from end to end, nor sorts what it then shows a page of."""
    read = await explain(one_connection, name, CALLS[name])
    assert read.scans
    assert "Seq Scan dead_letters" not in read.scans
    if name not in BOUNDED:
        most = TENANTS_TIMES_PAGE if "all tenants" in name else 600
        assert read.rows <= most
        assert read.sorted_rows <= most
