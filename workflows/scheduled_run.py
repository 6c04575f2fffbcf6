"""What a schedule starts at each of its times: one run, once, and no end before the run's own.

A schedule's server starts the same workflow id again when a time is backfilled twice. A run id is used once, so the run
is a child that rejects a duplicate. The schedule's overlap policy holds for the run, because this waits for it.
"""

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import RunResult, RunStatus, Workflow, scheduled_run_id
    from redrive.fairness import turn_of
    from redrive.visibility import search_attributes, with_labels
    from redrive.workflows.inputs import NOTHING, read_run_input


@workflow.defn(name=Workflow.SCHEDULED_RUN)
class ScheduledRun:
    """Start the run of one time of a schedule, and wait for its end."""

    @workflow.run
    async def run(self, raw: RawValue = NOTHING) -> str:
        run = read_run_input(raw)
        try:
            await workflow.execute_child_workflow(
                Workflow.MODULE_RUN,
                run,
                id=scheduled_run_id(workflow.info().workflow_id),
                result_type=RunResult,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                # Whoever terminates this does not lose the run.
                parent_close_policy=ParentClosePolicy.ABANDON,
                cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                search_attributes=with_labels(
                    search_attributes(tenant=run.tenant, pipeline=run.pipeline, status=RunStatus.RUNNING), run.labels
                ),
                static_summary=f"{run.pipeline} of tenant {run.tenant}",
                priority=turn_of(run.tenant),
            )
        except WorkflowAlreadyStartedError:
            return "this time already had its run: nothing was started"
        except ChildWorkflowError as error:
            if is_cancelled_exception(error):
                raise
            return f"the run FAILED: {error.cause}"[:1000]
        return "the run succeeded"
