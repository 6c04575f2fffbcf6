"""Queries to a worker: run a query workflow and wait for its answer."""

from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from redrive.categories import Category
from redrive.contracts import Workflow
from redrive.errors import InvalidInput, Unavailable
from redrive.keys import new_run_id
from redrive.rpc_errors import unavailable
from redrive.service_states import ServiceStates

# A server that accepts connections but does not answer would block a caller for half a minute.
SILENCE = timedelta(seconds=10)
PROBE_TIMEOUT = timedelta(seconds=10)


async def ask(
    client: Client, task_queue: str, workflow: Workflow, answer: Any, *arguments: object, timeout: timedelta
) -> Any:
    """Return a worker's answer, or raise if none came in time."""
    try:
        return await client.execute_workflow(
            workflow,
            args=arguments,
            id=f"ask-{new_run_id()}",
            task_queue=task_queue,
            result_type=answer,
            execution_timeout=timeout,
            rpc_timeout=min(timeout, SILENCE),
        )
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == Category.VALIDATION:
            raise InvalidInput(error.cause.message) from error
        raise Unavailable(
            f"no worker answered on task queue {task_queue!r} within {timeout.seconds} s: "
            "start one with `redrive worker`"
        ) from error
    except RPCError as error:
        raise unavailable(error) from error


async def service_states(client: Client, task_queue: str) -> ServiceStates:
    """Have a worker ask the services that have a health path, and return what it found."""
    found: ServiceStates = await ask(client, task_queue, Workflow.PROBE_SERVICES, ServiceStates, timeout=PROBE_TIMEOUT)
    return found
