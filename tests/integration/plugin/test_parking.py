"""What parks, what does not, and what ends a park besides a command."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio import workflow
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import CancelledError
from temporalio.plugin import SimplePlugin

from redrive.contracts import SearchAttribute
from redrive.dead_letters import LetterStatus
from redrive.plugin import DeadLetters
from tests.conftest import eventually
from tests.integration.plugin import project
from tests.integration.plugin.conftest import ProjectFactory
from tests.integration.plugin.lab import Project, running


async def test_parallel_deaths_in_one_gather_are_dead_letters_of_their_own(users: Project) -> None:
    """Three of six fail in one workflow task; each is replayed by itself."""
    users.broken("ship-1", "ship-3", "ship-4")
    handle = await users.start(project.ParallelWorkflow.run, users.case, 6)
    letters = await users.parked(handle, 3)
    assert {letter["payload"]["1"] for letter in letters} == {"1", "3", "4"}
    users.broken()
    for letter in letters:
        assert (await users.command(letter, "replay")).accepted
    assert len(await handle.result()) == 6
    await users.closed(handle, LetterStatus.REPLAYED, 3)
    await users.replays(handle)


async def test_a_cancelled_workflow_closes_its_dead_letters(users: Project) -> None:
    """A cancellation while it is parked ends it as without the plugin."""
    users.broken("charge")
    handle = await users.start(project.OrderWorkflow.run, users.order())
    await users.parked(handle)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, CancelledError)
    await users.closed(handle, LetterStatus.DISCARDED)
    await users.replays(handle)


async def test_a_timeout_around_a_parked_await_ends_it(users: Project) -> None:
    """Code that waits for a second only goes on after it."""
    users.broken("charge")
    handle = await users.start(project.ImpatientWorkflow.run, users.order())
    assert await handle.result() in {"TimeoutError", "ActivityError"}
    await users.closed(handle, LetterStatus.DISCARDED)
    await users.replays(handle)


async def test_continue_as_new_closes_what_is_open(users: Project) -> None:
    """The dead letters of a run that continued as new are closed, not left pending."""
    users.broken("charge")
    handle = await users.start(project.RestlessWorkflow.run, users.order(), False)
    assert await handle.result() == "second"
    await users.closed(handle, LetterStatus.DISCARDED)


async def test_code_that_wants_the_error_gets_it(users: Project) -> None:
    """`errors_raised`, `no_dead_letters` and benign errors leave no dead letter and no mark in the history."""
    users.broken("charge")
    fallback = await users.start(project.FallbackWorkflow.run, users.order())
    assert await fallback.result() == "fell back"
    plain = await users.start(project.PlainWorkflow.run, users.order())
    assert await plain.result() == "raised"
    users.outside.error = project.BENIGN
    benign = await users.start(project.OrderWorkflow.run, users.order())
    with pytest.raises(WorkflowFailureError):
        await benign.result()
    for handle in (fallback, plain, benign):
        assert await users.letters(handle) == []
        assert "MARKER_RECORDED" not in await event_types(handle)


async def test_the_arguments_are_those_of_the_start(users: Project) -> None:
    """Code that changes an object after it has started an activity with it does not change the replay."""
    users.broken("charge")
    handle = await users.start(project.CarelessWorkflow.run, users.order(5))
    [letter] = await users.parked(handle)
    assert letter["payload"]["amount"] == 5
    users.broken()
    await users.command(letter, "replay")
    assert await handle.result() == 5


async def test_a_workflow_that_fails_by_itself_parks_when_asked_to(new_project: ProjectFactory) -> None:
    """Its replay continues as new with an edited input, and who waits for the result gets it."""
    async with running(await new_project(whole_workflows=True)) as users:
        handle = await users.start(project.WholeWorkflow.run, users.order(-1))
        [letter] = await users.parked(handle)
        assert (letter["module"], letter["error_type"]) == ("WholeWorkflow", "Negative")
        assert (await users.command(letter, "replay", input_patch={"amount": 4})).accepted
        assert await handle.result() == 4
        await users.closed(handle, LetterStatus.REPLAYED)


async def test_a_workflow_that_fails_by_an_error_of_its_own_types_parks_too(new_project: ProjectFactory) -> None:
    """A worker names the errors by which its workflows fail; a discard raises the very same one."""
    types = {"workflow_failure_exception_types": [ValueError]}
    async with running(await new_project(whole_workflows=True), **types) as users:
        handle = await users.start(project.WholeWorkflow.run, users.order(0))
        [letter] = await users.parked(handle)
        assert (letter["module"], letter["error_type"], letter["message"]) == (
            "WholeWorkflow",
            "ValueError",
            "nothing to charge",
        )
        assert letter["config"]["code_line"].endswith("WholeWorkflow.run")
        assert (await users.command(letter, "replay", input_patch={"amount": 4})).accepted
        assert await handle.result() == 4
        discarded = await users.start(project.WholeWorkflow.run, users.order(0))
        [letter] = await users.parked(discarded)
        await users.command(letter, "discard")
        with pytest.raises(WorkflowFailureError) as failed:
            await discarded.result()
        assert str(failed.value.cause) == "ValueError: nothing to charge"


async def test_a_workflow_with_a_retry_policy_parks_when_that_is_used_up(new_project: ProjectFactory) -> None:
    """Temporal's own attempts come first; a replay has another policy if that is asked for."""
    twice = RetryPolicy(maximum_attempts=2, initial_interval=timedelta(milliseconds=100))
    async with running(await new_project(whole_workflows=True)) as users:
        handle = await users.start(project.WholeWorkflow.run, users.order(-1), retry_policy=twice)
        [letter] = await users.parked(handle)
        assert [attempt["attempt"] for attempt in letter["attempts"]] == [2]
        late = await users.command(letter, "replay", policy={"deadline": 60})
        assert (late.accepted, "keeps its deadline" in late.message) == (False, True)
        change = {"policy": {"max_attempts": 3, "timeout": 300}, "input_patch": {"amount": 4}}
        assert (await users.command(letter, "replay", **change)).accepted
        assert await handle.result() == 4
        last = await users.client.get_workflow_handle(handle.id).fetch_history()
        started = last.events[0].workflow_execution_started_event_attributes
        assert (started.retry_policy.maximum_attempts, started.workflow_run_timeout.seconds) == (3, 300)
        final = RetryPolicy(non_retryable_error_types=["Negative"])
        at_once = await users.start(project.WholeWorkflow.run, users.order(-1), retry_policy=final)
        await users.parked(at_once)
        await at_once.terminate()


async def test_a_discarded_error_does_not_park_the_whole_workflow(new_project: ProjectFactory) -> None:
    """An operator who discards an activity is not asked again about its workflow."""
    async with running(await new_project(whole_workflows=True)) as users:
        users.broken("ship")
        handle = await users.start(project.OrderWorkflow.run, users.order())
        [letter] = await users.parked(handle)
        await users.command(letter, "discard")
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        await users.closed(handle, LetterStatus.DISCARDED)


async def test_only_what_the_patterns_name_parks(new_project: ProjectFactory) -> None:
    """Workflows and activities are chosen by name."""
    options: dict[str, Any] = {"workflows": ["Order*"], "except_activities": ["char*"]}
    async with running(await new_project(**options)) as users:
        users.broken("charge")
        failed = await users.start(project.OrderWorkflow.run, users.order())
        with pytest.raises(WorkflowFailureError):
            await failed.result()
        users.broken("ship")
        parked = await users.start(project.OrderWorkflow.run, users.order())
        await users.parked(parked, module="ship")
        other = await users.start(project.ParallelWorkflow.run, users.case, 1)
        with pytest.raises(WorkflowFailureError):
            await other.result()
        await parked.terminate()


def test_a_pattern_that_is_no_list_is_refused() -> None:
    """A text would be a list of letters."""
    with pytest.raises(TypeError, match="a list of names is needed"):
        DeadLetters("Order*")


def by_id(info: workflow.Info) -> str:
    """Return the tenant from the workflow's id."""
    return info.workflow_id.partition(":")[0]


def by_number(info: workflow.Info) -> str:
    """Return a number: a mistake that people make."""
    return len(info.workflow_id)  # type: ignore[return-value]


def by_attribute(info: workflow.Info) -> str:
    """Return a search attribute that no workflow has."""
    return info.typed_search_attributes[SearchAttributeKey.for_keyword("Missing")]


@pytest.mark.parametrize("source", ["attribute", "memo", "function", "number", "wrong", "failing"])
async def test_the_tenant_comes_from_the_workflow(new_project: ProjectFactory, source: str) -> None:
    """From a search attribute, a memo or a function; what is no tenant's name is the default tenant."""
    key = SearchAttributeKey.for_keyword(SearchAttribute.TENANT)
    options: dict[str, dict[str, Any]] = {
        "attribute": {"tenant_attribute": SearchAttribute.TENANT.value},
        "memo": {"tenant_memo": "tenant"},
        "function": {"tenant": by_id},
        "number": {"tenant": by_number},
        "wrong": {"tenant": by_id},
        "failing": {"tenant": by_attribute},
    }
    async with running(await new_project(**options[source])) as users:
        users.broken("charge")
        handle = await users.start(
            project.OrderWorkflow.run,
            users.order(),
            id=f"{'No Name' if source == 'wrong' else 'acme'}:{users.case}",
            memo={"tenant": "acme"},
            search_attributes=workflow_attributes(key, "acme") if source == "attribute" else None,
        )
        [letter] = await users.parked(handle)
        by_itself = {"wrong": "default", "failing": "default", "number": str(len(handle.id))}
        assert letter["tenant"] == by_itself.get(source, "acme")
        await handle.terminate()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Cannot find activity to cancel")
async def test_many_parked_workflows_need_no_place_in_the_cache(new_project: ProjectFactory) -> None:
    """A worker that keeps two workflows in memory serves fifty parked ones."""
    async with running(await new_project(), max_cached_workflows=2, max_concurrent_workflow_tasks=2) as users:
        users.broken("charge")
        handles = [await users.start(project.OrderWorkflow.run, users.order()) for _ in range(50)]
        letters = [(await users.parked(handle, within=60))[0] for handle in handles]
        users.broken()
        for first in range(0, 50, 5):
            answers = await asyncio.gather(*(users.command(letter, "replay") for letter in letters[first : first + 5]))
            assert all(answer.accepted for answer in answers)
        assert {await handle.result() for handle in handles} == {"1: shipped o-1 in 3"}


async def test_a_worker_for_workflows_alone_leaves_activities_to_others(new_project: ProjectFactory) -> None:
    """The plugin's own activities are local: a second worker may have the activities of the queue."""
    users = await new_project()
    async with users.worker(activities=[]), users.worker(workflows=[]):
        users.broken("charge")
        handle = await users.start(project.OrderWorkflow.run, users.order())
        [letter] = await users.parked(handle)
        users.broken()
        await users.command(letter, "replay")
        assert await handle.result() == "1: shipped o-1 in 3"


@pytest.mark.parametrize("brought", ["activities", "workflows"])
async def test_what_another_plugin_brings_is_seen(new_project: ProjectFactory, brought: str) -> None:
    """A plugin that comes later may add the worker's only activities, as those of agents do, or its only workflows."""
    users = await new_project()
    theirs: dict[str, Any] = {"activities": project.ACTIVITIES, "workflows": project.WORKFLOWS}
    later = SimplePlugin("theirs", **{brought: theirs[brought]})
    async with users.worker(plugins=[later], **{brought: []}), asyncio.timeout(60):
        users.broken("charge")
        handle = await users.start(project.OrderWorkflow.run, users.order())
        [letter] = await users.parked(handle)
        users.broken()
        await users.command(letter, "replay")
        assert await handle.result() == "1: shipped o-1 in 3"


async def test_it_can_be_given_to_a_single_worker(new_project: ProjectFactory) -> None:
    """The client does not have it: its workflows park all the same, and plain activities get Redrive's classes."""
    users = await new_project(classify=True)
    users.client = await type(users.client).connect(users.client.service_client.config.target_host)
    async with users.worker(plugins=[users.plugin]), asyncio.timeout(60):
        users.broken("refund")
        users.outside.error = httpx.HTTPStatusError(
            "422 Unprocessable", request=httpx.Request("POST", "http://bank"), response=httpx.Response(422)
        )
        handle = await users.start(project.RefundWorkflow.run, users.order())
        [letter] = await users.parked(handle)
        assert (letter["category"], letter["error_type"]) == ("provider_4xx", "HTTPStatusError")
        assert len(users.outside.called("refund")) == 1
        users.broken()
        await users.command(letter, "replay")
        assert await handle.result() == "refunded"


@pytest.mark.filterwarnings("ignore:The same plugin type")
async def test_it_is_there_once_and_two_of_them_are_refused(new_project: ProjectFactory) -> None:
    """Whoever gives it to the client and to the worker has it once; two with patterns of their own would park twice."""
    users = await new_project()
    async with running(users, plugins=[users.plugin]):
        users.broken("charge")
        handle = await users.start(project.OrderWorkflow.run, users.order())
        [letter] = await users.parked(handle)
        users.broken()
        await users.command(letter, "replay")
        assert await handle.result() == "1: shipped o-1 in 3"
        await users.closed(handle, LetterStatus.REPLAYED)
    with pytest.raises(ValueError, match="a worker has one DeadLetters"):
        users.worker(plugins=[DeadLetters(["Order*"])])


async def test_it_is_added_to_open_workflows_switched_off_and_removed(new_project: ProjectFactory) -> None:
    """Off for new failures, it still serves what is parked; removed too early, nothing is lost."""
    users, off = await new_project(), await new_project(activities=[])
    off.queue = users.queue
    users.broken("charge")
    async with users.worker():
        handle = await users.start(project.OrderWorkflow.run, users.order())
        [letter] = await users.parked(handle)
    marked = f"TemporalChangeVersion = 'redrive:charge' AND WorkflowId = '{handle.id}'"

    async def is_found() -> bool:
        return [each.id async for each in users.client.list_workflows(marked)] == [handle.id]

    await eventually(is_found)
    async with off.worker():
        other = await off.start(project.OrderWorkflow.run, users.order())
        with pytest.raises(WorkflowFailureError):
            await other.result()
    plain = await type(users.client).connect(users.client.service_client.config.target_host)
    async with project.plain_worker(plain, users.queue):
        await handle.signal("redrive.command", "anything")
        await eventually(lambda: is_stuck(handle), within=60)
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
    users.broken()
    async with off.worker():
        assert (await users.command(letter, "replay")).accepted
        async with asyncio.timeout(60):
            assert await handle.result() == "1: shipped o-1 in 3"


async def is_stuck(handle: WorkflowHandle[Any, Any]) -> bool:
    """Tell whether a workflow task fails over and over."""
    return (await handle.describe()).raw_description.pending_workflow_task.attempt > 1


async def event_types(handle: WorkflowHandle[Any, Any]) -> str:
    """Return the names of a history's events."""
    return (await handle.fetch_history()).to_json()


def workflow_attributes(key: SearchAttributeKey[str], value: str) -> Any:
    """Return search attributes of a start."""
    return TypedSearchAttributes([SearchAttributePair(key, value)])
