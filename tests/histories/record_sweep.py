"""Record the histories of the sweep: `python -m tests.histories.record_sweep`, in a fresh server of its own."""

import asyncio

from temporalio import activity
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from redrive.contracts import Activity, SweepInput, Workflow
from redrive.processes.temporal import workflow_runner
from redrive.starter.stack.temporal_server import find_temporal
from redrive.workflows.maintenance import RetrySweep
from tests.conftest import eventually
from tests.histories.record import EVENTS_BEFORE_CONTINUE, HERE, TASK_QUEUE, scrubbed

NAME = "retry_sweep"
TWO_SHIFTS = 16


@activity.defn(name=Activity.SWEEP_RETRIES)
async def sweep_retries(command: SweepInput) -> int:
    """Send nothing: a history knows only that it was done."""
    return 7


async def _keep_parts(client: Client) -> None:
    """Store the part that was continued, and what there is of the one that goes on."""
    handle = client.get_workflow_handle(NAME)
    first = (await handle.describe()).raw_description.workflow_execution_info.first_run_id

    async def continued() -> str | None:
        last = (await client.get_workflow_handle(NAME, run_id=first).fetch_history()).events[-1]
        return last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None

    second = await eventually(continued)

    async def swept() -> bool:
        return len((await client.get_workflow_handle(NAME, run_id=second).fetch_history()).events) > TWO_SHIFTS

    await eventually(swept)
    for number, execution in enumerate((first, second), 1):
        history = await client.get_workflow_handle(NAME, run_id=execution).fetch_history()
        file = HERE / f"{NAME}_{number}.json"
        file.write_text(scrubbed(history.to_json()))
        print(file.name)


async def main() -> None:
    """Write the histories."""
    environment = await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=str(find_temporal()),
        dev_server_extra_args=[
            "--dynamic-config-value",
            f"limit.historyCount.suggestContinueAsNew={EVENTS_BEFORE_CONTINUE}",
        ],
    )
    async with environment:
        client = environment.client
        worker = Worker(
            client,
            task_queue=TASK_QUEUE,
            workflows=[RetrySweep],
            activities=[sweep_retries],
            workflow_runner=workflow_runner(),
        )
        async with worker:
            command = SweepInput(tenant="default")
            await client.start_workflow(Workflow.RETRY_SWEEP, command, id=NAME, task_queue=TASK_QUEUE)
            await _keep_parts(client)


if __name__ == "__main__":
    asyncio.run(main())
