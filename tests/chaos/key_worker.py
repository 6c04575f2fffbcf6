"""A worker that dies where it writes the row of a run that ends: `python -m tests.chaos.key_worker before_row`."""

import sys
from typing import Any

from redrive import worker
from redrive.activities import run_records
from redrive.store.runs import put_finished
from tests.chaos.key_caller import die


async def _dying(*arguments: Any, **fields: Any) -> None:
    if sys.argv[1] == "after_row":
        await put_finished(*arguments, **fields)
    die()


if __name__ == "__main__":
    vars(run_records)["put_finished"] = _dying
    worker.main()
