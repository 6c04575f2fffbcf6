"""Start a run from Python and wait for it. Run it beside `redrive up`: `python examples/caller.py`.

The pipeline `hello` is one of the examples, and the README's first module.
"""

import asyncio

from redrive import Redrive, RunFailed


async def main() -> None:
    """Start a run twice with one key, look at it, and read its result."""
    async with await Redrive.connect() as redrive:
        first = await redrive.start("hello", {"name": "Ada"}, key="greeting:ada:1")
        second = await redrive.start("hello", {"name": "Ada"}, key="greeting:ada:1")
        print(first.run_id == second.run_id, second.is_cached)

        view = await redrive.status(first.run_id)
        print(view.status, [step.status for step in view.steps])

        try:
            result = await redrive.result(first.run_id)
        except RunFailed as error:
            print(error)
        else:
            print(result.output["text"])


if __name__ == "__main__":
    asyncio.run(main())
