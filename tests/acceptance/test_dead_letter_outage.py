"""PostgreSQL is away while more runs die than a worker has places for: the others go on."""

import asyncio

import pytest

from redrive import RunStatus
from tests.chaos.case import TENANT
from tests.chaos.modules import PIPELINE
from tests.chaos.scene import scene
from tests.conftest import eventually
from tests.integration.dead_letters.processes import stopped

DYING = 150
HEALTHY = 5
# Without an ordinary activity behind the local ones they are through after two minutes.
PATIENCE = 90.0


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_runs_that_need_no_database_go_on_while_it_is_away() -> None:
    """Records that wait for the database do not take all of a worker's places; they are written when it is back."""
    async with scene(runs=DYING, workers=1, seed=0) as stage:
        case = stage.case
        stage.sink.refusing = True
        with stopped(stage.trouble.stack.info.children["postgres"]):
            await case.start_all()
            await eventually(lambda: _at_least(stage.sink.refused, DYING), within=60)
            # Some of them are reported by now; the places are taken when they are.
            await asyncio.sleep(5)
            stage.sink.refusing = False
            async with asyncio.timeout(PATIENCE):
                healthy = [
                    await case.redrive.start(PIPELINE, {"number": DYING + number}, tenant=TENANT)
                    for number in range(HEALTHY)
                ]
                results = await asyncio.gather(*(case.redrive.result(run.run_id) for run in healthy))
        assert {result.status for result in results} == {RunStatus.SUCCESS}
        await case.until_status("pending", DYING)
        assert await case.dead_violations() == []


async def _at_least(count: int, wanted: int) -> bool:
    return count >= wanted
