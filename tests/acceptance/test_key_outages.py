"""Starts with one key from several processes while PostgreSQL hangs, and while Temporal is killed and comes back."""

import pytest

from tests.chaos.keys import key_scene

STARTS = 200


@pytest.mark.timeout(240)
async def test_same_key_is_one_run_whichever_server_goes_away_in_the_middle() -> None:
    """One run id, one call of the step, at most one first caller; every living caller is answered; the row is made."""
    async with key_scene() as scene:
        for trouble in ("postgres", "temporal"):
            burst, problems = await scene.burst(trouble, starts=STARTS, callers=3, at_once=10)
            assert problems == [], trouble
            assert set(burst.errors) <= {"outcome_unknown", "unavailable"}
