"""A worker that dies where it writes the row of a run that ends: `python -m tests.chaos.key_worker before_row`."""

import sys
from typing import Any

from redrive import worker
from redrive.activities import run_records
from redrive.store.runs import FinishedRun, put_finished
from tests.chaos.key_caller import die


async def _dying(session: Any, run: FinishedRun) -> None:
    if sys.argv[1] == "after_row":
        await put_finished(session, run)
    die()


if __name__ == "__main__":
    vars(run_records)["put_finished"] = _dying
    worker.main()
