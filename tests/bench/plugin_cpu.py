"""`make bench-plugin`: CPU of a history replay with 200 activities, with and without the plugin.

It fails if the plugin costs more than a tenth.
"""

import asyncio
import gc
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, Worker

with workflow.unsafe.imports_passed_through():
    from redrive.plugin import DeadLetters
    from redrive.settings import Settings
    from redrive.starter.stack.stack import Stack

COUNT = 200
ROUNDS = 25
LIMIT = 1.1


@activity.defn
async def work(number: int, text: str) -> str:
    """Return the text."""
    return f"{number} {text}"


@workflow.defn
class ManyWorkflow:
    """Run many activities, ten at a time."""

    @workflow.run
    async def run(self) -> int:
        """Return how many there were."""
        done = 0
        for start in range(0, COUNT, 10):
            results = await asyncio.gather(
                *(
                    workflow.execute_activity(
                        work, args=[number, "x" * 100], start_to_close_timeout=timedelta(minutes=1)
                    )
                    for number in range(start, start + 10)
                )
            )
            done += len(results)
        return done


async def record(address: str) -> WorkflowHistory:
    """Return the history of a run without the plugin."""
    client = await Client.connect(address)
    async with Worker(client, task_queue="cpu", workflows=[ManyWorkflow], activities=[work]):
        handle = await client.start_workflow(ManyWorkflow.run, id="cpu", task_queue="cpu")
        await handle.result()
    return await handle.fetch_history()


async def cpu(history: WorkflowHistory, plugins: list[Any]) -> float:
    """Return the CPU seconds of one replay of a history."""
    gc.collect()
    began = time.process_time()
    await Replayer(workflows=[ManyWorkflow], plugins=plugins).replay_workflow(history)
    return time.process_time() - began


async def main() -> int:
    """Measure in turns, print the medians, and return whether they are too far from each other."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        async with Stack(Settings(), state_dir=Path(directory) / "state", workers=0) as stack:
            history = await record(stack.info.temporal_address)
    plugin = DeadLetters(["*"])
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(ROUNDS):
        seconds["without"].append(await cpu(history, []))
        seconds["with"].append(await cpu(history, [plugin]))
    middle = {name: sorted(values)[ROUNDS // 2] for name, values in seconds.items()}
    best = {name: min(values) for name, values in seconds.items()}
    for name in seconds:
        print(f"{name:8} median {middle[name] * 1000:7.1f} ms   best {best[name] * 1000:7.1f} ms")
    ratio = middle["with"] / middle["without"]
    print(f"ratio    median {ratio:.3f} (limit {LIMIT})   best {best['with'] / best['without']:.3f}")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
