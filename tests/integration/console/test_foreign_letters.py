"""Dead letters of foreign workflows in the console and the API."""

import re

import httpx
from temporalio.client import Client

from redrive import Redrive
from redrive.dead_letters import LetterStatus
from redrive.plugin import DeadLetters
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from tests.conftest import owner_url
from tests.integration.plugin import project
from tests.integration.plugin.lab import Project, running


async def test_a_foreign_dead_letter_has_its_page_and_takes_commands_by_the_api(
    admin: httpx.AsyncClient, lab: Redrive, console_settings: Settings, stack: StackInfo, tenant: str
) -> None:
    """The page names activity, arguments and the line that waits; a replay with an edit by the API lets it go on."""
    plugin = DeadLetters(["*"], tenant=tenant, task_queue=console_settings.task_queue)
    client = await Client.connect(stack.temporal_address, plugins=[plugin])
    async with running(Project(client, lab, owner_url(stack), plugin)) as users:
        users.broken("charge")
        handle = await users.start(project.OrderWorkflow.run, users.order())
        [letter] = await users.parked(handle)
        page = (await admin.get(f"/dead-letters/{letter['id']}")).text
        for shown in ("OrderWorkflow › charge", "Arguments", handle.id, "The error is raised in the workflow"):
            assert shown in page
        assert re.search(r"<dt>Code line</dt><dd class=\"mono\">\S+project\.py:\d+ OrderWorkflow\.run</dd>", page)
        assert "this step only" not in page
        listed = (await admin.get("/dead-letters?view=list")).text
        assert "OrderWorkflow › charge" in listed
        plan = await admin.post(f"/dead-letters/{letter['id']}/plan")
        assert plan.status_code == 200
        assert f"/api/v1/workflow-dlq/{letter['id']}/reset" in page
        users.broken()
        body = {"reason": "fixed", "input_patch": {"amount": 4}}
        answer = await admin.post(f"/api/v1/workflow-dlq/{letter['id']}/replay", json=body)
        assert answer.is_success, answer.text
        assert await handle.result() == "4: shipped o-1 in 3"
        await users.closed(handle, LetterStatus.REPLAYED)
        late = await admin.post(f"/api/v1/workflow-dlq/{letter['id']}/reset", json={"reason": "too late"})
        assert (late.status_code, late.json()["code"]) == (409, "command_refused")
        assert len(users.outside.called("charge")) == 2


async def test_a_foreign_workflow_is_reset_by_the_api_once(
    admin: httpx.AsyncClient, lab: Redrive, console_settings: Settings, stack: StackInfo, tenant: str
) -> None:
    """A new run does it again; the same request again gets the same answer and starts no other run."""
    plugin = DeadLetters(["*"], tenant=tenant, task_queue=console_settings.task_queue)
    client = await Client.connect(stack.temporal_address, plugins=[plugin])
    async with running(Project(client, lab, owner_url(stack), plugin)) as users:
        users.broken("ship")
        handle = await users.start(project.OrderWorkflow.run, users.order())
        [letter] = await users.parked(handle)
        users.broken()
        body = {"reason": "new code", "request_id": f"reset-{users.case}"}
        answers = [await admin.post(f"/api/v1/workflow-dlq/{letter['id']}/reset", json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [202, 202]
        assert await client.get_workflow_handle(handle.id).result() == "1: shipped o-1 in 3"
        runs = [run async for run in client.list_workflows(f"WorkflowId = '{handle.id}'")]
        assert len(runs) <= 2
        assert len(users.outside.called("ship")) == 2


async def test_a_reset_closes_all_dead_letters_of_the_old_run(
    admin: httpx.AsyncClient, lab: Redrive, console_settings: Settings, stack: StackInfo, tenant: str
) -> None:
    """Two of a gather died: the old run is terminated, and nobody can answer for either any more."""
    plugin = DeadLetters(["*"], tenant=tenant, task_queue=console_settings.task_queue)
    client = await Client.connect(stack.temporal_address, plugins=[plugin])
    async with running(Project(client, lab, owner_url(stack), plugin)) as users:
        users.broken("ship")
        handle = await users.start(project.ParallelWorkflow.run, users.case, 2)
        old = await users.parked(handle, 2)
        users.broken()
        answer = await admin.post(f"/api/v1/workflow-dlq/{old[0]['id']}/reset", json={"reason": "new code"})
        assert answer.is_success, answer.text
        await users.closed(handle, LetterStatus.DISCARDED, 2)
        reasons = {row["resolution_reason"].partition(":")[2] for row in await users.letters(handle)}
        assert reasons == {" new code"}
        assert await client.get_workflow_handle(handle.id).result() == ["shipped 0 in 0", "shipped 1 in 1"]
