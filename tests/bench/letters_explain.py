"""How the lists of dead letters are read from a million rows: `python -m tests.bench.letters_explain [rows]`.

Every query of the store is run as the application runs it, and then explained: which index, how many rows, how long.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import asyncpg
from asyncpg.connection import LoggedQuery
from pydantic_core import to_json

from redrive.categories import Category
from redrive.contracts import Attempt
from redrive.dead_letters import LetterFilter, LetterStatus
from redrive.postgres.database import connect, open_pool
from redrive.postgres.paging import Place, write_cursor
from redrive.postgres.tenancy import Connection, Pool
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack, wipe
from redrive.store.dead_letters.figures import backlog, groups, stats
from redrive.store.dead_letters.lists import audit_trail, get_letter, list_letters, open_letters
from redrive.store.migrate import migrate
from tests.conftest import owner_url

ROWS: Final = 1_000_000
TENANT: Final = "acme"
ONE: Final = "dead-letter-run-c4ca4238a0b923820dcc509a6f75849b-step-1"
NEWEST: Final = datetime(2026, 11, 1, tzinfo=UTC)

Owner: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

# Eight in ten of one tenant, the oldest tenth of another, the rest of ninety. One in ten open; two thousand ways to
# fail, some frequent.
_LOAD: Final = """
    INSERT INTO dead_letters (id, tenant, run_id, step, module, pipeline, status, category, error_type, message, stack,
        attempts, cycle, first_failed_at, last_failed_at, payload, config, correlation_id, idempotency_key, build_id,
        fingerprint)
    SELECT 'dead-letter-run-' || md5(n::text) || '-' || step,
        CASE WHEN n > $1 * 0.9 THEN 'tenant-old' WHEN n % 10 = 0 THEN 'tenant-' || n / 10 % 90 ELSE 'acme' END,
        'run-' || md5(n::text), step, step, 'pipeline-' || n % 20,
        CASE WHEN n % 10 <> 3 THEN 'replayed' WHEN n % 7 = 0 THEN 'replaying' ELSE 'pending' END,
        (ARRAY['timeout', 'network', 'validation', 'provider_5xx', 'unknown'])[1 + n % 5], 'ServiceError',
        'order ' || n || ' could not be charged: the service answered 503 after 3 tries',
        repeat('  File "service.py", line 12, in charge' || chr(10), 10), $3::jsonb, 1,
        at - interval '1 minute', at, '{"n": 1}', '{}', 'trace-' || n, 'key-' || n, 'build-1',
        'fingerprint-' || (n % 2000) * (n % 3) / 2
    FROM (SELECT n, 'step-' || n % 30 AS step, $2::timestamptz - n * interval '1 second' AS at
          FROM generate_series(1, $1) AS n) AS numbers
"""


async def load(owner: Owner, rows: int, newest: datetime = NEWEST) -> None:
    """Fill the tables as the owner: triggers off, counters made from the whole, indexes made after the rows."""
    await owner.execute("SET search_path = redrive; SET session_replication_role = replica")
    indexes = await owner.fetch(
        """
        SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS sql FROM pg_index
        WHERE indrelid = 'dead_letters'::regclass AND NOT indisunique
        """
    )
    for index in indexes:
        await owner.execute(f"DROP INDEX {index['name']}")
    one = Attempt(attempt=1, at=newest, category=Category.TIMEOUT, error_type="ServiceError", error="503")
    await owner.execute(_LOAD, rows, newest, to_json([one] * 3).decode())
    for index in indexes:
        await owner.execute(index["sql"])
    await owner.execute(
        "INSERT INTO dead_letter_counts SELECT tenant, status, count(*) FROM dead_letters GROUP BY tenant, status"
    )
    await owner.execute("VACUUM ANALYZE dead_letters")
    await owner.execute("ANALYZE dead_letter_counts")


Call = Callable[[Pool], Awaitable[Any]]


def _listing(**filters: Any) -> Call:
    async def call(pool: Pool) -> Any:
        return await list_letters(pool, LetterFilter(**filters), 50)

    return call


def _page_after(rows: int) -> Call:
    chosen = LetterFilter(tenant=TENANT)
    cursor = write_cursor(Place(NEWEST - timedelta(seconds=rows / 2), "dead-letter"), chosen)

    async def call(pool: Pool) -> Any:
        return await list_letters(pool, chosen, 50, cursor)

    return call


def calls(rows: int) -> dict[str, Call]:
    """Return every way to read, by name."""
    middle = NEWEST - timedelta(seconds=rows / 2)
    return {
        "list": _listing(tenant=TENANT),
        "list, a page in the middle": _page_after(rows),
        "list by status pending": _listing(tenant=TENANT, status=LetterStatus.PENDING),
        "list by status replayed": _listing(tenant=TENANT, status=LetterStatus.REPLAYED),
        "list by status resolved (none)": _listing(tenant=TENANT, status=LetterStatus.RESOLVED),
        "list by pipeline": _listing(tenant=TENANT, pipeline="pipeline-7"),
        "list by module": _listing(tenant=TENANT, module="step-7"),
        "list by step": _listing(tenant=TENANT, step="step-7"),
        "list by category": _listing(tenant=TENANT, category=Category.NETWORK),
        "list by fingerprint": _listing(tenant=TENANT, fingerprint="fingerprint-7"),
        "list of a tenant whose letters are old": _listing(tenant="tenant-old"),
        "list from the middle": _listing(tenant=TENANT, until=middle),
        "list pending by pipeline and step": _listing(
            tenant=TENANT, status=LetterStatus.PENDING, pipeline="pipeline-3", step="step-13"
        ),
        "list by ids": _listing(tenant=TENANT, letters=[ONE]),
        "list by ids, all tenants": _listing(letters=[ONE]),
        "list of all tenants": _listing(),
        "list of all tenants, pending": _listing(status=LetterStatus.PENDING),
        "list of all tenants by fingerprint": _listing(fingerprint="fingerprint-7"),
        "search by key": _listing(tenant=TENANT, text=f"key-{rows // 2 + 1}"),
        "search by trace, all tenants": _listing(text=f"trace-{rows // 2 + 1}"),
        "search by part, frequent": _listing(tenant=TENANT, text="could not be CHARGED"),
        "search by part, none": _listing(tenant=TENANT, text="no such words"),
        "one letter": lambda pool: get_letter(pool, TENANT, ONE),
        "its audit trail": lambda pool: audit_trail(pool, TENANT, "dead-letter-run-x"),
        "open letters by id": lambda pool: open_letters(pool, TENANT, "dead-letter-run-8", 500),
        "open letters by id, all tenants": lambda pool: open_letters(pool, None, "dead-letter-run-8", 500),
        "groups": lambda pool: groups(pool, LetterFilter(tenant=TENANT)),
        "groups of all tenants": lambda pool: groups(pool, LetterFilter()),
        "stats": lambda pool: stats(pool, TENANT),
        "stats of all tenants": stats,
        "backlog": backlog,
    }


@dataclass(frozen=True)
class Explained:
    """How a call reads: the nodes of its plans that touch a table, and how long the whole call took."""

    name: str
    scans: list[str]
    rows: int
    sorted_rows: int
    took: float


async def explain(pool: Pool, name: str, call: Call) -> Explained:
    """Run a call as it is, then explain each of its statements. The pool has one connection."""
    for _ in range(3):
        started = time.perf_counter()
        await call(pool)
        took = time.perf_counter() - started
    statements = await _statements(pool, call)
    nodes: list[dict[str, Any]] = []
    async with pool.acquire() as connection:
        for each in statements:
            if "set_config" in each.query:
                enter = each
            elif "FROM" in each.query:
                nodes += await _nodes(connection, each, enter)
    tables = [node for node in nodes if "Relation Name" in node or node["Node Type"] == "Bitmap Index Scan"]
    return Explained(
        name,
        list(dict.fromkeys(_scan(node) for node in tables)),
        max((_count(node) for node in tables), default=0),
        max((_count(node) for node in nodes if node["Node Type"].endswith("Sort")), default=0),
        took,
    )


async def _statements(pool: Pool, call: Call) -> list[LoggedQuery]:
    statements: list[LoggedQuery] = []
    async with pool.acquire() as connection:
        connection.add_query_logger(statements.append)
    await call(pool)
    async with pool.acquire() as connection:
        connection.remove_query_logger(statements.append)
    return statements


async def _nodes(connection: Connection, statement: LoggedQuery, enter: LoggedQuery) -> list[dict[str, Any]]:
    async with connection.transaction():
        await connection.execute(enter.query, *(enter.args or ()))
        plan = json.loads(
            await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.query}", *(statement.args or ()))
        )
    return _walk(plan[0]["Plan"])


def _walk(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(each for child in node.get("Plans", []) for each in _walk(child))]


def _scan(node: dict[str, Any]) -> str:
    return f"{node['Node Type']} {node.get('Index Name') or node.get('Relation Name')}"


def _count(node: dict[str, Any]) -> int:
    removed = node.get("Rows Removed by Filter", 0)
    # What goes into a sort counts, not what a limit takes out of it.
    into = max((each["Actual Rows"] * each["Actual Loops"] for each in node.get("Plans", [])), default=0)
    return int(max((node["Actual Rows"] + removed) * node["Actual Loops"], into))


async def main(rows: int) -> None:
    """Load, explain, print."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-", ignore_cleanup_errors=True) as path:
        state_dir = Path(path)
        state_dir.chmod(0o711)
        settings = Settings(temporal_address="127.0.0.1:1", database_url=None)
        async with Stack(settings, state_dir=state_dir, workers=0) as stack:
            url = owner_url(stack.info)
            await migrate(url)
            owner = await connect(url)
            started = time.perf_counter()
            await load(owner, rows)
            print(f"{rows} dead letters in {time.perf_counter() - started:.0f} s")
            async with await open_pool(url, max_size=1) as pool:
                print(f"{'query':36} {'ms':>7} {'rows read':>9} {'sorted':>7}  plan")
                for name, call in calls(rows).items():
                    each = await explain(pool, name, call)
                    plan = ", ".join(each.scans)
                    print(f"{name:36} {each.took * 1000:7.1f} {each.rows:9} {each.sorted_rows:7}  {plan}")
            await owner.close()
        await wipe(state_dir)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
