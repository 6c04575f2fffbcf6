"""The dead letter of a foreign workflow names the line of code where the workflow waits."""

import linecache
import re
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from tests.integration.plugin import project
from tests.integration.plugin.conftest import ProjectFactory
from tests.integration.plugin.lab import Project, running


async def code_line(users: Project, handle: WorkflowHandle[Any, Any], count: int = 1) -> tuple[str, str]:
    """Return the function and the text of the line that a parked workflow's dead letters name."""
    [named] = {letter["config"]["code_line"] for letter in await users.parked(handle, count)}
    found = re.fullmatch(r"(.+):(\d+) (.+)", named)
    assert found, named
    await handle.terminate()
    return found[3], linecache.getline(found[1], int(found[2])).strip()


@pytest.mark.parametrize(
    ("run", "call"),
    [
        (project.OrderWorkflow.run, "workflow.execute_activity(charge"),
        (project.LocalWorkflow.run, "workflow.execute_local_activity("),
        (project.ParentWorkflow.run, "workflow.execute_child_workflow(FailingChild.run"),
        (project.CarelessWorkflow.run, "receipt: Receipt = await handle"),
    ],
)
async def test_the_line_is_that_of_the_await(users: Project, run: Any, call: str) -> None:
    """In Temporal's sandbox, of an activity, a local one, a child, and of a handle that was started before."""
    users.broken("charge")
    function, line = await code_line(users, await users.start(run, users.order()))
    assert call in line
    assert function == run.__qualname__


async def test_within_a_gather_the_line_is_where_the_workflow_waits(users: Project) -> None:
    """Temporal's own code alone awaits the operations there."""
    users.broken("ship-0", "ship-1")
    handle = await users.start(project.ParallelWorkflow.run, users.case, 2)
    assert await code_line(users, handle, 2) == ("ParallelWorkflow.run", "await asyncio.gather(")


async def test_a_workflow_that_failed_by_itself_names_the_line_that_raised(new_project: ProjectFactory) -> None:
    """It waits nowhere in its own code."""
    async with running(await new_project(whole_workflows=True)) as users:
        handle = await users.start(project.WholeWorkflow.run, users.order(-1))
        function, line = await code_line(users, handle)
    assert (function, line.startswith("raise ApplicationError(")) == ("WholeWorkflow.run", True)
