"""A power failure: `up` and all that it has started are killed at once while commands are given, and started again."""

import asyncio

import pytest

from tests.chaos.agreement import tracebacks
from tests.chaos.faults import Faults
from tests.chaos.stores import settle, stage
from tests.chaos.traffic import Traffic
from tests.conftest import eventually

RUNS = 12
WITHIN = 150.0


@pytest.mark.timeout(400)
async def test_all_sources_agree_by_themselves_after_a_crash_of_everything() -> None:
    """The sink, Temporal, PostgreSQL and every key's answer; each command that was answered is recorded once."""
    async with stage(workers=1, seed=0) as (up, sink), Traffic.of(up, sink, seed=0) as traffic:
        await asyncio.gather(*(traffic.start(number) for number in range(RUNS)))
        waiting = await eventually(lambda: traffic.waiting(RUNS), within=60)
        commands = [asyncio.create_task(traffic.command(found)) for found in waiting]
        # When the first has its answer, the others are somewhere on their way.
        await asyncio.wait(commands, return_when=asyncio.FIRST_COMPLETED)
        await Faults(up, seed=0).crash_of_everything()
        await asyncio.gather(*commands)
        assert await settle(traffic, WITHIN) == []
        assert tracebacks(up.directory / ".redrive" / "logs") == []
