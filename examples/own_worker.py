"""A program with its own worker: runs begin where they are started. Run it beside `redrive up`.

`REDRIVE_TASK_QUEUE=greetings python examples/own_worker.py`: its worker has the examples' modules alone, so it has a
queue of its own.
"""

import asyncio

from redrive.examples.hello import hello
from redrive.worker import own_worker


async def main() -> None:
    """Start a run, and read its result."""
    async with own_worker() as redrive:
        started = await redrive.start(hello.name, {"name": "Ada"})
        result = await redrive.result(started.run_id)
        print(result.output["text"])


if __name__ == "__main__":
    asyncio.run(main())
