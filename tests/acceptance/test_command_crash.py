"""A crash of the whole machine while commands are given: what was taken is carried out when the stack is back."""

import asyncio
import contextlib
import os
import signal
from functools import partial

from temporalio.client import Client
from temporalio.service import RPCError

from redrive import RunStatus
from redrive.dead_letters import Verb
from redrive.errors import RedriveError
from tests.chaos.scene import Scene, scene
from tests.conftest import eventually

RUNS = 24
TAKEN_BEFORE = 8


async def test_command_that_was_taken_survives_a_crash_of_everything() -> None:
    """Workers, Temporal and PostgreSQL are killed at once; nobody sends a command again or repairs anything."""
    async with scene(runs=RUNS, workers=2, seed=0) as stage:
        case = stage.case
        stage.sink.refusing = True
        await case.start_all()
        await case.until_status("pending", RUNS)
        stage.sink.refusing = False
        client = await Client.connect(stage.trouble.stack.info.temporal_address)
        taken: set[str] = set()
        enough = asyncio.Event()

        async def send(run_id: str) -> None:
            command = {"request_id": f"again-{run_id}", "requested_by": "ada", "reason": "the service is back"}
            with contextlib.suppress(RPCError):
                await client.get_workflow_handle(run_id).signal(Verb.REPLAY, command)
                taken.add(run_id)
            if len(taken) >= TAKEN_BEFORE:
                enough.set()

        sending = asyncio.gather(*(send(run_id) for run_id in case.runs.values()))
        await enough.wait()
        _kill_everything(stage)
        await sending
        for run_id in taken:
            assert (await case.insist(partial(case.redrive.result, run_id))).status is RunStatus.SUCCESS

        async def agree() -> bool:
            with contextlib.suppress(OSError, TimeoutError):
                return await _disagreements(stage, taken) == []
            return False

        await eventually(agree, within=60)


def _kill_everything(stage: Scene) -> None:
    for name in stage.trouble.workers.ready:
        stage.trouble.workers.kill(name)
    for name in ("temporal", "postgres"):
        os.kill(stage.trouble.stack.info.children[name], signal.SIGKILL)


async def _disagreements(stage: Scene, taken: set[str]) -> list[str]:
    """Compare the records, rows and keys with what Temporal says of each run."""
    rows = await stage.case.rows(
        """
        SELECT letter.run_id, letter.status, letter.replay_count, run.status AS run, key.status AS key
        FROM redrive.dead_letters AS letter JOIN redrive.runs AS run USING (run_id)
            JOIN redrive.idempotency_keys AS key USING (run_id)
        """
    )
    expected = {
        RunStatus.SUCCESS: ("replayed", 1, "SUCCESS", "completed"),
        RunStatus.DLQ_PENDING: ("pending", 0, "DLQ_PENDING", "processing"),
    }
    found = []
    for row in rows:
        try:
            status = (await stage.case.redrive.status(row["run_id"])).status
        except RedriveError as error:
            return [str(error)]
        if expected.get(status) != tuple(row)[1:] or (row["run_id"] in taken and status is not RunStatus.SUCCESS):
            found.append(f"{status}: {dict(row)}")
    return found if len(rows) == RUNS else [f"{len(rows)} records"]
