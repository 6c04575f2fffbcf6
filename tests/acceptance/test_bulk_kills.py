"""A bulk replay under kill -9: the short form of `tests/chaos/bulk.py`, with every worker killed once."""

from tests.chaos.bulk_case import BulkCase
from tests.chaos.scene import scene

LETTERS = 100


async def test_killed_workers_replay_nothing_twice_and_leave_nothing_out() -> None:
    """Another worker does the leg that was under way again: each dead letter is replayed once, all are counted."""
    async with scene(runs=LETTERS, workers=2, seed=0) as stage:
        case, bulk = stage.case, BulkCase(stage.case)
        stage.sink.refusing = True
        await case.start_all()
        await case.until_status("pending", LETTERS)

        stage.sink.refusing = False
        await bulk.start()
        await bulk.until(lambda counts: counts["APPLIED"] >= LETTERS // 10)
        for worker in stage.trouble.workers.ready:
            stage.trouble.workers.kill(worker)
        await bulk.until_ended()
        assert await bulk.violations() == []
