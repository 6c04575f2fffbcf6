"""How long the pages take at a million dead letters: `python -m tests.bench.console [rows ...]`.

Each page is asked for by an admin of the large tenant and by an owner of all. The ratio is that of the lowest times:
what else the machine does only adds to them. There is no Temporal here: the pages of runs and modules, which ask it,
are not measured.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from redrive.access import Role
from redrive.console.app import build_app
from redrive.postgres.database import ACCESS_ROLE, connect, open_pool
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack, wipe
from redrive.store.access import TokenRequest, create_owner_token, create_token
from redrive.store.migrate import migrate
from tests.bench.letters_explain import TENANT, load
from tests.conftest import owner_url

ROWS: Final = (10_000, 1_000_000)
ROUNDS: Final = 30
LETTER: Final = "dead-letter-run-c4ca4238a0b923820dcc509a6f75849b-step-1"
PAGES: Final = {
    "list": "/dead-letters?view=list",
    "list, pending": "/dead-letters?view=list&status=pending",
    "list, by module and category": "/dead-letters?view=list&step=step-7&category=validation",
    "groups": "/dead-letters",
    "overview": "/",
    "one dead letter": f"/dead-letters/{LETTER}",
    "audit": "/audit",
    "bulk operations": "/bulk",
}


class Took(NamedTuple):
    """How many milliseconds a page took."""

    lowest: float
    median: float


async def measure(rows: int) -> dict[str, Took]:
    """Load so many dead letters, ask for each page, and return how long it took, by page and role."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-", ignore_cleanup_errors=True) as path:
        state_dir = Path(path)
        state_dir.chmod(0o711)
        async with Stack(Settings(temporal_address="127.0.0.1:1"), state_dir=state_dir, workers=0) as stack:
            url = owner_url(stack.info)
            await migrate(url)
            owner = await connect(url)
            # The newest failed just now: the chart of the last day is full.
            await load(owner, rows, datetime.now(UTC))
            await owner.close()
            tokens = await _tokens(url)
            settings = Settings(temporal_address="127.0.0.1:1", database_url=url, rate_limit="1000000/minute")
            took = {
                f"{page}, {role}": await _took(settings, token, address)
                for role, token in tokens.items()
                for page, address in PAGES.items()
            }
        await wipe(state_dir)
    return took


async def _tokens(url: str) -> dict[str, str]:
    wish = TokenRequest(
        name="bench",
        role=Role.ADMIN,
        tenant=TENANT,
        created_by="bench",
        person="account:bench",
        lasts=timedelta(hours=1),
    )
    async with await open_pool(url, max_size=1, role=ACCESS_ROLE) as pool:
        admin = await create_token(pool, wish)
    everything = replace(wish, role=Role.OWNER, tenant=None)
    return {"admin": admin.secret, "owner": (await create_owner_token(url, everything)).secret}


async def _took(settings: Settings, token: str, address: str) -> Took:
    app = build_app(settings)
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": f"Bearer {token}"}
    took = []
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://bench", headers=headers) as client,
    ):
        for _ in range(ROUNDS):
            started = time.perf_counter()
            answer = await client.get(address)
            took.append((time.perf_counter() - started) * 1000)
            answer.raise_for_status()
    return Took(min(took), statistics.median(took))


async def main(sizes: tuple[int, ...]) -> None:
    """Measure at each size, and print the times and the ratio of the last to the first."""
    found = [await measure(rows) for rows in sizes]
    print(f"{'ms, lowest (median)':40}" + "".join(f"{rows:>18,}" for rows in sizes) + f"{'ratio':>8}")
    for page in found[0]:
        times = [each[page] for each in found]
        shown = "".join(f"{took.lowest:10.1f} ({took.median:5.1f})" for took in times)
        print(f"{page:40}{shown}{times[-1].lowest / times[0].lowest:8.2f}")


if __name__ == "__main__":
    asyncio.run(main(tuple(int(word) for word in sys.argv[1:]) or ROWS))
