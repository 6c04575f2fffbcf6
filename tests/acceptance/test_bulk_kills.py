"""A bulk replay under kill -9: the short form of `tests/chaos/bulk.py`, with workers and console killed once."""

import pytest

from tests.chaos.bulk_case import bulk_case
from tests.chaos.scene import scene

LETTERS = 60


@pytest.mark.long
async def test_killed_workers_and_console_replay_nothing_twice_and_leave_nothing_out() -> None:
    """Another worker does the leg that was under way again: each dead letter is replayed once, all are counted."""
    async with (
        scene(runs=LETTERS, workers=2, seed=0, console=True) as stage,
        bulk_case(stage.case, stage.console) as bulk,
    ):
        stage.sink.refusing = True
        await stage.case.start_all()
        await stage.case.until_status("pending", LETTERS)

        stage.sink.refusing = False
        await bulk.start()
        await bulk.until(lambda counts: counts["APPLIED"] >= LETTERS // 10)
        stage.trouble.kill_console()
        for worker in stage.trouble.workers.ready:
            stage.trouble.workers.kill(worker)
        await bulk.until_ended()
        assert stage.trouble.damage.consoles_killed == 1
        assert await bulk.violations() == []
