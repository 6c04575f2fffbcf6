"""The worker process of the plain workflows: `python -m tests.bench.plain_worker ADDRESS TASK_QUEUE READY_FILE RUNNER`.

RUNNER is `sandbox`, as Temporal comes, or `bare`, as Redrive's worker runs its workflows. BENCH_LETTERS_URL names the
database of the hand-written run's records.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from tests.bench.letter_plain import HandWrittenRun, ParkingRun
from tests.bench.letter_steps import URL, Records, close_record, plain_fragile, write_record
from tests.bench.plain import PlainRun
from tests.bench.plain_steps import STEPS

RUNNERS: dict[str, type[WorkflowRunner]] = {"sandbox": SandboxedWorkflowRunner, "bare": UnsandboxedWorkflowRunner}


async def serve(address: str, task_queue: str, ready_file: Path, runner: WorkflowRunner) -> None:
    """Run a worker until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    Records.pool = await asyncpg.create_pool(os.environ[URL], min_size=0)
    workflows: list[type] = [PlainRun, ParkingRun, HandWrittenRun]
    activities: list[Callable[..., Any]] = [*STEPS, plain_fragile, write_record, close_record]
    worker = Worker(client, task_queue=task_queue, workflows=workflows, activities=activities, workflow_runner=runner)
    async with worker:
        ready_file.touch()
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), RUNNERS[sys.argv[4]]()))
    # Interpreter shutdown with Temporal's native threads alive can crash; there is nothing left to clean up.
    os._exit(0)
