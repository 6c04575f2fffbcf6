"""An outbox bridge whose starts take a fixed time and reach no Temporal: what is left is the outbox's own time.

Keys are claimed and rows are taken, recorded and followed as ever. `python -m tests.bench.outbox` runs it.
"""

import asyncio
from datetime import timedelta
from unittest.mock import patch

from temporalio.client import Client

from redrive.contracts import RunInput
from redrive.idempotency import starts
from redrive.outbox.settings import OutboxSettings
from redrive.processes.outbox_bridge import serve
from redrive.processes.program import prepare
from redrive.settings import read_environment, read_settings

START = timedelta(milliseconds=20)


async def _start(_client: Client, _task_queue: str, _run_id: str, _run: RunInput) -> bool:
    await asyncio.sleep(START.total_seconds())
    return True


def main() -> None:
    """Run it as a program."""
    settings = read_settings()
    prepare(settings)
    with patch.object(starts, "start_run", _start):
        asyncio.run(serve(settings, read_environment(OutboxSettings)))


if __name__ == "__main__":
    main()
