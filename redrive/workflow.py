"""Modules inside any Temporal workflow: branches, loops, parallel steps, timers and approvals are plain Python.

profile, credit = await asyncio.gather(run_module(fetch_profile, user), run_module(check_credit, user))
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.workflow import unsafe

from redrive.modules import DEFAULT_REGISTRY, In, Module, Out
from redrive.plugin.module_steps import CURRENT
from redrive.policy import RetryPolicy

__all__ = ["hosted", "run_module"]

Workflow = TypeVar("Workflow", bound=type)


async def run_module(
    module: Module[In, Out],
    given: BaseModel | Mapping[str, Any],
    *,
    policy: RetryPolicy | None = None,
    user_id: str | None = None,
    correlation_id: str | None = None,
) -> Out:
    """Run a module as a step of the workflow that runs now, and return its output.

    It has its policy, deadline, classes of errors, attempts and keys, as in a pipeline. When it is exhausted, the
    workflow waits here, and a dead letter for a command; inside `errors_raised()` the error is raised instead.
    """
    steps = CURRENT.get(None)
    if steps is None:
        raise RuntimeError(
            f"run_module({module.name!r}): the workflow's worker does not have the plugin redrive.plugin.DeadLetters, "
            "and is not Redrive's own; add the plugin, or decorate the workflow with @redrive.workflow.hosted"
        )
    output: Out = await steps.run(module, given, policy, user_id=user_id, correlation_id=correlation_id)
    return output


def hosted(workflow_class: Workflow) -> Workflow:
    """Have Redrive's own worker run a workflow, beside the modules: `@hosted` above `@workflow.defn`."""
    if not unsafe.in_sandbox():
        DEFAULT_REGISTRY.workflows.append(workflow_class)
    return workflow_class
