"""Queries to a worker about its modules. Each workflow is one local activity, which any live worker answers."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, Catalog, Resolution, ResolveRequest, Workflow
    from redrive.workflows.inputs import NOTHING, read_input, read_no_input

TIMEOUT = timedelta(seconds=10)


@workflow.defn(name=Workflow.DESCRIBE_MODULES)
class DescribeModules:
    """List the modules and pipelines of a worker."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> Catalog:
        read_no_input(raw)
        catalog: Catalog = await workflow.execute_local_activity(
            Activity.DESCRIBE_MODULES, result_type=Catalog, start_to_close_timeout=TIMEOUT
        )
        return catalog


@workflow.defn(name=Workflow.RESOLVE_PIPELINE)
class ResolvePipeline:
    """Return the steps of a pipeline, or why a payload cannot start it."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> Resolution:
        request = read_input(ResolveRequest, raw)
        resolution: Resolution = await workflow.execute_local_activity(
            Activity.RESOLVE_PIPELINE, request, result_type=Resolution, start_to_close_timeout=TIMEOUT
        )
        return resolution
