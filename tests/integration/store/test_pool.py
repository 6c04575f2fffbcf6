import asyncpg
import pytest

from redrive.errors import Unavailable
from redrive.postgres.database import connect, open_pool
from redrive.store.migrate import migrate


async def test_application_is_not_the_owner(database_url: str) -> None:
    """Connections act as the application's role, in our schema, also after they came back to the pool."""
    await migrate(database_url)
    async with await open_pool(database_url, max_size=1) as pool:
        for _ in range(2):
            async with pool.acquire() as connection:
                assert await connection.fetchval("SELECT current_user") == "redrive_app"
                assert await connection.fetchval("SELECT current_schema()") == "redrive"
                await connection.execute("RESET ROLE; SET search_path = public")
        assert await pool.fetchval("SELECT current_user") == "redrive_app"


@pytest.mark.parametrize("table", ["redrive.mine", "public.mine"])
async def test_application_cannot_make_tables(database_url: str, table: str) -> None:
    """The application's role has no rights but those that a migration grants."""
    await migrate(database_url)
    async with await open_pool(database_url) as pool:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await pool.execute(f"CREATE TABLE {table} ()")


async def test_new_table_is_closed_until_granted(database_url: str) -> None:
    """A migration that forgets its grant gives nothing away."""
    await migrate(database_url)
    owner = await connect(database_url)
    await owner.execute("CREATE TABLE redrive.secrets AS SELECT 1 AS id")
    async with await open_pool(database_url) as pool:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await pool.fetch("SELECT * FROM secrets")
        await owner.execute("GRANT SELECT ON redrive.secrets TO redrive_app")
        assert await pool.fetchval("SELECT id FROM secrets") == 1
    await owner.close()


async def test_database_that_is_not_there_gives_a_sentence(server_url: str) -> None:
    """The sentence names the database and not the password."""
    password = server_url.partition("@")[0].rpartition(":")[2]
    with pytest.raises(Unavailable, match='database "nowhere" does not exist') as caught:
        await open_pool(f"{server_url}/nowhere")
    assert password not in str(caught.value)
