"""Dead letters under kill -9: the short form of `make chaos`, with one kill of each kind in each half."""

import asyncio

from tests.chaos.scene import Scene, scene

RUNS = 24


async def test_kills_lose_no_dead_letter_and_replay_none_twice() -> None:
    """Every run that dies has one record; every replay, sent by four callers at once, is carried out once."""
    async with scene(runs=RUNS, workers=2, seed=0) as stage:
        case = stage.case
        stage.sink.refusing = True
        await case.start_all()
        await asyncio.gather(_hurt(stage, "pending"), case.until_status("pending", RUNS))
        assert await case.dead_violations() == []

        stage.sink.refusing = False
        await asyncio.gather(_hurt(stage, "replayed"), case.replay_all(callers=20, copies=4))
        ended = await case.results()
        await case.until_status("replayed", RUNS)
        assert await case.replayed_violations(ended) == []


async def _hurt(stage: Scene, status: str) -> None:
    """When some are through, kill a worker, and stop and kill PostgreSQL."""
    await stage.case.until_status(status, RUNS // 10)
    stage.trouble.kill_worker()
    await stage.trouble.stop_postgres()
    await stage.trouble.kill_postgres()
