"""A program with its own worker: `python -m tests.acceptance.own_worker PIPELINE KEY PAYLOAD` starts a run."""

import asyncio
import json
import sys

from redrive.modules import load_modules
from redrive.settings import read_settings
from redrive.worker import own_worker


async def main(pipeline: str, key: str, payload: str) -> None:
    """Start the run in the process that works on it."""
    settings = read_settings()
    load_modules(settings.modules)
    async with own_worker(settings) as redrive:
        await redrive.start(pipeline, json.loads(payload), key=key)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
