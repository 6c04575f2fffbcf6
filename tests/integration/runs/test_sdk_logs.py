"""What Temporal's SDK logs about an input that it cannot decode holds no secret of that input."""

import uuid
from pathlib import Path

import pytest
from temporalio.client import Client

from redrive.contracts import Workflow
from redrive.dead_letters import LetterSignal
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually
from tests.hostile.secrets import WORD
from tests.integration.dead_letters.processes import WorkerProcess


@pytest.mark.parametrize("kind", [Workflow.DEAD_LETTER_QUEUE, Workflow.DEAD_LETTER])
@pytest.mark.parametrize("signal", [None, LetterSignal.EXHAUSTED, "replay"])
async def test_sdk_logs_no_secret_of_an_input_that_it_cannot_decode(
    stack: StackInfo, temporal: Client, tmp_path: Path, signal: str | None, kind: Workflow
) -> None:
    """An input of a workflow or a signal that does not fit is told without secrets, also by the SDK's native part."""
    queue, workflow_id = f"queue-{uuid.uuid4().hex[:12]}", f"dead-letter-{uuid.uuid4().hex[:12]}"
    worker = WorkerProcess(stack, tmp_path, REDRIVE_TASK_QUEUE=queue)
    await worker.start()
    secret = f"password={WORD}"
    given = {"letter": {"tenant": secret, "run_id": [secret], "step": {"x": secret}}, "surplus": secret}
    await temporal.start_workflow(
        kind,
        given,
        id=workflow_id,
        task_queue=queue,
        start_signal=signal,
        start_signal_args=[{"letter": secret, "cycle": [secret]}] if signal else [],
    )

    async def closed() -> bool:
        return (await temporal.get_workflow_handle(workflow_id).describe()).close_time is not None

    try:
        await eventually(closed)
    finally:
        await worker.stop()
    log = worker.log.read_text()
    assert "worker.started" in log
    assert WORD not in log
