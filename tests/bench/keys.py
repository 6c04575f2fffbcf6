"""Compare a start with a key with a plain Temporal start, and with the answer to a key: `python -m tests.bench.keys`.

No worker takes the runs: what is measured is the start, from the call to its answer. The ways take turns on the same
servers, in the same minutes.
"""

import argparse
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter
from rich.table import Table

from redrive import Redrive, RunStatus
from redrive.connection import connect_temporal
from redrive.contracts import ClaimRequest
from redrive.idempotency.claims import Settlement
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.keys import KEY_TTL, request_hash, run_id_for_key
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from tests.bench.contenders import PLAIN
from tests.bench.measure import Call, WayCase, compare_ways
from tests.bench.models import ORDER
from tests.bench.modules import PIPELINES
from tests.bench.plain import PlainRun
from tests.bench.program import count, run_program, shown

TENANT = "bench"
ANSWERED = "answered"
PIPELINE = PIPELINES[1]
WAYS = ("plain start", "keyed start", "cached answer")
AT_ONCE = (1, 50)

CASE_LIST = TypeAdapter(list[WayCase])


@asynccontextmanager
async def ways() -> AsyncIterator[dict[str, Call]]:
    """Bring up a stack, and say how to start on it."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as directory:
        async with Stack(Settings(), state_dir=Path(directory), workers=0) as stack:
            client = await connect_temporal(Settings(temporal_address=stack.info.temporal_address))
            claims = PostgresClaims(stack.info.database_url.get_secret_value())
            async with Redrive(client, task_queue="nobody", claims=claims) as redrive:
                await _answer_for_good(claims)

                async def plain() -> object:
                    return await client.start_workflow(
                        PlainRun.run, args=[ORDER, 1], id=f"plain-{uuid.uuid4().hex}", task_queue=PLAIN
                    )

                async def keyed() -> object:
                    return await redrive.start(PIPELINE, ORDER, tenant=TENANT, key=uuid.uuid4().hex)

                async def cached() -> object:
                    return await redrive.start(PIPELINE, ORDER, tenant=TENANT, key=ANSWERED)

                yield dict(zip(WAYS, (plain, keyed, cached), strict=True))


async def _answer_for_good(claims: PostgresClaims) -> None:
    """Make a key whose run has ended."""
    request = ClaimRequest(
        tenant=TENANT,
        key=ANSWERED,
        run_id=run_id_for_key(TENANT, ANSWERED),
        pipeline=PIPELINE.name,
        request_hash=request_hash(PIPELINE.name, ORDER.model_dump(mode="json")),
        expires_at=datetime.now(UTC) + KEY_TTL,
    )
    await claims.settle(request, Settlement(status=RunStatus.SUCCESS, output=ORDER.model_dump(mode="json")))


async def bench(starts: int, rounds: int) -> list[WayCase]:
    """Measure every way in every case."""
    async with ways() as known:
        return [
            await compare_ways("starts with a key", known, at_once=at_once, count=starts, rounds=rounds)
            for at_once in AT_ONCE
        ]


def way_tables(cases: list[WayCase], title: str, reference: str) -> list[Table]:
    """Return a table of ways, with their rates against that of one of them."""
    table = Table("", "at once", "way", title=title)
    for head in ("per s", "p50 ms", "p99 ms", f"of {reference}"):
        table.add_column(head, justify="right")
    for case in cases:
        for each in case.figures:
            ratio = str(each.ratios.get(reference, ""))
            numbers = shown(each.per_s, each.p50_ms, each.p99_ms)
            table.add_row(case.what, str(case.at_once), each.contender, *numbers, ratio)
    return [table]


def main() -> None:
    """Run the benchmark as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.keys", description=__doc__.partition(":")[0])
    parser.add_argument("--starts", type=count, default=300, help="starts of a way in a round")
    parser.add_argument("--rounds", type=count, default=5, help="rounds of each case")
    run_program(
        parser,
        lambda words: bench(words.starts, words.rounds),
        CASE_LIST,
        lambda cases: way_tables(cases, "Starts with a key", WAYS[0]),
    )


if __name__ == "__main__":
    main()
