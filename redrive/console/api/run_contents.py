"""What a run and its steps were given and returned: asked of the run, redacted, for those who may see payloads."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from redrive.client import ANSWER_TIMEOUT
from redrive.console.api.answers import refusals
from redrive.console.app_state import AppState, TheAppState
from redrive.console.authentication import PayloadReader, Scope
from redrive.contracts import Message, Query, RunInput, RunState, StepStatus
from redrive.dead_letters import RunDocument
from redrive.documents import patched, step_input
from redrive.errors import RunNotFound, Unavailable

router = APIRouter(prefix="/runs/{run_id}", tags=["runs"])


class StepContents(Message):
    """What a step is given and what it returned, redacted."""

    step: str
    input: dict[str, Any] = Field(description="with the edits")
    edits: list[dict[str, Any]] = Field(description="by replays, as JSON Merge Patches, the oldest first")
    is_done: bool
    output: Any = Field(default=None, description="what it returned, or was given by a resolve")


async def read_document(app_state: AppState, tenant: str | None, run_id: str) -> RunInput:
    """Ask a run for its input and state; one of another tenant is not found."""
    missing = RunNotFound(f"no run of yours has the id {run_id[:200]!r}, or Temporal has forgotten it")
    handle = (await app_state.temporal()).get_workflow_handle(run_id)
    try:
        found: RunDocument = await handle.query(Query.DOCUMENT, result_type=RunDocument, rpc_timeout=ANSWER_TIMEOUT)
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            raise missing from None
        raise Unavailable(f"run {run_id!r} did not answer: is a worker of its task queue running?") from error
    except WorkflowQueryFailedError as error:
        raise missing from error
    if tenant not in {None, found.run.tenant}:
        raise missing
    return found.run


def step_contents(run: RunInput, step: str) -> StepContents:
    """Return what a step of a run is given and returned, as it is."""
    state = run.state or RunState(steps=[])
    names = [each.name for each in run.steps or []]
    if step not in names:
        raise RunNotFound(f"the run has no step {step[:80]!r}; it has {', '.join(names) or 'none yet'}")
    place = names.index(step)
    earlier = {name: state.outputs[name] for name in names[:place] if name in state.outputs}
    edits = state.patches.get(step, [])
    reads = (run.steps or [])[place].reads
    return StepContents(
        step=step,
        input=patched(step_input(run.payload | earlier, reads), edits),
        edits=edits,
        is_done=any(each.name == step and each.status is StepStatus.SUCCESS for each in state.steps),
        output=state.outputs.get(step),
    )


async def find_contents(app_state: TheAppState, _caller: PayloadReader, tenant: Scope, run_id: str, step: str) -> Any:
    """Return what a step is given and returned, redacted."""
    contents = step_contents(await read_document(app_state, tenant, run_id), step)
    redactor = await app_state.redactor_of_runs()
    return StepContents.model_validate(await redactor.value_aside(contents.model_dump(mode="json")))


FoundContents = Annotated[StepContents, Depends(find_contents)]


@router.get("/steps/{step}", responses=refusals(404))
async def step(found: FoundContents) -> StepContents:
    """Show what a step is given and what it returned. Secrets are redacted; the run has the true values."""
    return found
