"""Starts with one key while PostgreSQL hangs, while Temporal is killed and comes back, and after it forgot the run."""

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from redrive import IdempotencyMismatch, RunStatus
from tests.chaos.key_caller import PIPELINE
from tests.chaos.keys import key_scene
from tests.conftest import eventually

STARTS = 100
TENANT = "forgotten"


async def _have_forgotten(client: Client, run_id: str) -> None:
    """Ask Temporal to delete a run, as it does by itself when its retention is over. It takes half a minute."""
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=client.namespace, workflow_execution=WorkflowExecution(workflow_id=run_id)
        )
    )


async def _is_forgotten(client: Client, run_id: str) -> bool:
    try:
        await client.get_workflow_handle(run_id).describe()
    except RPCError:
        return True
    return False


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_same_key_is_one_run_whatever_goes_away() -> None:
    """One run id, one workflow, at most one first caller; every living caller is answered; the row is made and kept."""
    async with key_scene() as scene, scene.caller() as redrive:
        scene.gate.set()
        first = await redrive.start(PIPELINE, {"n": 1}, tenant=TENANT, key="k")
        await redrive.result(first.run_id)
        await _have_forgotten(redrive._client, first.run_id)
        for trouble in ("postgres", "temporal"):
            burst, problems = await scene.burst(trouble, starts=STARTS, callers=3, at_once=10)
            assert problems == [], trouble
            assert set(burst.errors) <= {"outcome_unknown", "unavailable"}
        await eventually(lambda: _is_forgotten(redrive._client, first.run_id), within=90)
        scene.calls.clear()
        again = await redrive.start(PIPELINE, {"n": 1}, tenant=TENANT, key="k")
        with pytest.raises(IdempotencyMismatch):
            await redrive.start(PIPELINE, {"n": 2}, tenant=TENANT, key="k")
        assert (again.run_id, again.is_cached, again.status) == (first.run_id, True, RunStatus.SUCCESS)
        assert (again.response, scene.calls) == ({"n": 2}, [])
        assert await _is_forgotten(redrive._client, first.run_id)
