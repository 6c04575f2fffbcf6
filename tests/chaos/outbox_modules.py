"""The pipeline of the outbox under trouble: it tells a file which row its run is for."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, RetryPolicy, module

PIPELINE = "outbox-chaos"
FILE = "OUTBOX_CHAOS_FILE"
# A worker that is killed costs an attempt, and that happens often here.
PATIENT = RetryPolicy(
    base=timedelta(milliseconds=200), cap=timedelta(seconds=2), max_attempts=1000, timeout=timedelta(seconds=5)
)


class Order(BaseModel):
    """Which row it is."""

    number: int


@module("outbox-note", policy=PATIENT)
async def note(ctx: ModuleContext, order: Order) -> Order:
    """Append which run this row has. A short line is written whole."""
    await asyncio.to_thread(_append, f"{order.number} {ctx.run_id}\n")
    return order


def _append(line: str) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(line)


Pipeline(PIPELINE, note)
