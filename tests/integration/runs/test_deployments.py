"""Workers that are versions of one of Temporal's worker deployments."""

import uuid

from temporalio.api.enums.v1 import VersioningBehavior
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from redrive import Registry, RunStatus
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import add_good_pipeline, run_until_settled


async def _make_current(client: Client, deployment: str, build: str) -> None:
    """Make a build the current version; a new worker's version is known after a moment."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=deployment, build_id=build, identity="test"
    )

    async def accepted() -> bool:
        try:
            await client.workflow_service.set_worker_deployment_current_version(request)
        except RPCError:
            return False
        return True

    await eventually(accepted)


async def test_a_build_gets_runs_when_it_is_the_current_version(worker: WorkerFactory, registry: Registry) -> None:
    """A run is of the version that was made current, and follows the deployment when that changes."""
    add_good_pipeline(registry)
    deployment = f"shop-{uuid.uuid4().hex[:8]}"
    async with worker(deployment=deployment, build_id="one") as running:
        await _make_current(running.temporal, deployment, "one")
        view = await run_until_settled(running.redrive, "good", {"n": 1})
        description = await running.temporal.get_workflow_handle(view.run_id).describe()
    info = description.raw_description.workflow_execution_info.versioning_info
    assert view.status is RunStatus.SUCCESS
    assert (info.deployment_version.deployment_name, info.deployment_version.build_id) == (deployment, "one")
    assert info.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_AUTO_UPGRADE
