"""The example `growth`: the integration tests and staging drills of specification 000, under their own names.

Real Temporal, PostgreSQL and Redis; the four services of a mission are stand-ins over real HTTP.
"""

from collections.abc import AsyncIterator

import pytest

from redrive.bridges.events.settings import EventSettings
from redrive.examples.growth.database import VARIABLE
from redrive.modules import DEFAULT_REGISTRY
from redrive.starter.growth import stories
from redrive.starter.growth.servers import keep_database, redis_for
from redrive.starter.growth.system import GrowthSystem, running_system
from redrive.starter.stack.state import StackInfo
from tests.conftest import owner_url

ALL = {"qscore": "succeeded", "service-session": "succeeded", "mission-stage": "succeeded", "artifact": "succeeded"}


@pytest.fixture(scope="module")
async def growth_url(stack: StackInfo) -> str:
    """The example's own database, on the session's server."""
    return await keep_database(owner_url(stack))


@pytest.fixture(scope="module")
async def system(stack: StackInfo, growth_url: str) -> AsyncIterator[GrowthSystem]:
    """The whole example, running. Its pipelines are not left behind: other tests of this process have such names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, growth_url)
        patch.setattr(DEFAULT_REGISTRY, "pipelines", dict(DEFAULT_REGISTRY.pipelines))
        async with (
            redis_for(stack, EventSettings(redis_url=None)) as redis_url,
            running_system(stack, redis_url, growth_url) as running,
        ):
            yield running


async def test_duplicate_run_command_does_not_duplicate_service_call(system: GrowthSystem) -> None:
    """Nine commands with one key, eight of them at once, are one run and one call."""
    facts = await stories.duplicate_command(system)
    assert facts == {"commands": 9, "runs": 1, "status": "SUCCESS", "service calls": 1}


async def test_duplicate_grow_event_is_stored_once_and_projection_remains_stable(system: GrowthSystem) -> None:
    """No row of the platform changes when the same event arrives again."""
    facts = await stories.duplicate_event(system)
    assert facts == {"entries": 3, "stored": 1, "projectors": ALL, "state is the same": True}


async def test_redis_message_failure_is_not_acked_until_retry_or_dlq_path_is_recorded(system: GrowthSystem) -> None:
    """As long as the record cannot be written, the entry is neither acknowledged nor on the dead letter stream."""
    facts = await stories.late_acknowledgement(system)
    assert facts["while nothing is recorded"] == {"unacknowledged": True, "on grow.events.dlq": 0}
    assert facts["acknowledged with"] == {"record": "pending", "on grow.events.dlq": 1}


async def test_dlq_replay_reprocesses_a_failed_event_and_updates_projector_status(system: GrowthSystem) -> None:
    """The failed projector and the one after it succeed; those before it are not touched."""
    facts = await stories.failed_projector(system)
    assert facts["before"] == {"qscore": "succeeded", "service-session": "succeeded", "mission-stage": "failed"}
    assert facts["dead letters by label"] == ["mission-stage"]
    assert (facts["run"], facts["after"]) == ("SUCCESS", ALL)


async def test_opencode_module_execution_retry_does_not_create_duplicate_artifact_rows(system: GrowthSystem) -> None:
    """Both answers are lost: the agent works once, and there is one file and one row."""
    facts = await stories.repeated_prompt(system)
    assert (facts["attempts"]["interview-plan"], facts["attempts"]["publish-plan"]) == (2, 2)
    assert (facts["status"], facts["prompts that the agent worked on"]) == ("SUCCESS", 1)
    assert (facts["requests for the file"], facts["files"], facts["artifact rows"]) == (2, 1, 1)


async def test_drill_1_stop_interview_service_run_interview_module(system: GrowthSystem) -> None:
    """Three attempts, then a dead letter that is found by its label; replayed, there is one session."""
    facts = await stories.stopped_service(system)
    assert (facts["run"], facts["attempts"], facts["dead letter"]) == ("DLQ_PENDING", 3, ("network", 3))
    assert (facts["after the replay"], facts["sessions"]) == ("SUCCESS", 1)


async def test_drill_2_emit_duplicate_redis_events(system: GrowthSystem) -> None:
    """Ten entries at two bridges are one event, and one row of each projector, two of the one with two signals."""
    facts = await stories.burst_of_duplicates(system)
    assert (facts["entries"], facts["grow_events"], facts["projectors"]) == (10, 1, ALL)
    assert list(facts["rows"].values()) == [1, 1, 2, 1, 1]


async def test_drill_3_break_gitea_token_provision_stack(system: GrowthSystem) -> None:
    """A lost answer is retried, the refused token is not; what Gitea has is what the parked run says."""
    facts = await stories.broken_token(system)
    assert facts["steps"] == {"create-user": "SUCCESS", "create-repository": "DLQ", "add-files": "PENDING"}
    assert facts["create-user"] == ["provider_5xx"]
    assert facts["dead letter"] == ("create-repository", "provider_4xx", 1)
    assert facts["on Gitea"] == ["user"]
    assert (facts["after the replay"], facts["on Gitea then"]) == ("SUCCESS", ["user", "repository", "README.md"])


async def test_drill_4_replay_a_dlq_event(system: GrowthSystem) -> None:
    """The corrected event is taken up: the mission's progress and the scores are there."""
    facts = await stories.dead_event(system)
    assert facts["before"] == ("pending", 0, {})
    assert facts["after"] == ("replayed", 25, {"clarity": 82, "depth": 64})
