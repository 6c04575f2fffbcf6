"""Dead letters of foreign workflows in the console and the API."""

import httpx
from temporalio.client import Client

from redrive import Redrive
from redrive.plugin import DeadLetters
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from tests.conftest import owner_url
from tests.integration.plugin import project
from tests.integration.plugin.lab import Project, running


async def test_a_foreign_dead_letter_has_its_page_and_takes_commands_by_the_api(
    admin: httpx.AsyncClient, lab: Redrive, console_settings: Settings, stack: StackInfo, tenant: str
) -> None:
    """The page names workflow type, activity and arguments; a replay with an edit by the API lets it go on."""
    plugin = DeadLetters(["*"], tenant=tenant, task_queue=console_settings.task_queue)
    client = await Client.connect(stack.temporal_address, plugins=[plugin])
    async with running(Project(client, lab, owner_url(stack), plugin)) as users:
        users.broken("charge")
        handle = await users.start(project.OrderWorkflow.run, users.order())
        [letter] = await users.parked(handle)
        page = (await admin.get(f"/dead-letters/{letter['id']}")).text
        for shown in ("OrderWorkflow › charge", "Arguments", handle.id, "The error is raised in the workflow"):
            assert shown in page
        assert "this step only" not in page
        listed = (await admin.get("/dead-letters?view=list")).text
        assert "OrderWorkflow › charge" in listed
        plan = await admin.post(f"/dead-letters/{letter['id']}/plan")
        assert plan.status_code == 200
        users.broken()
        body = {"reason": "fixed", "input_patch": {"amount": 4}}
        answer = await admin.post(f"/api/v1/workflow-dlq/{letter['id']}/replay", json=body)
        assert answer.is_success, answer.text
        assert await handle.result() == "4: shipped o-1 in 3"
