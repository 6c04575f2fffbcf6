"""The step of both contenders that fails for good until a file says that the cause is mended."""

import os
import time
from pathlib import Path

from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from redrive import ModuleContext, Pipeline, Terminal, module

PIPELINE, STEP = "bench-fragile", "fragile"
STEPS_FILE, PARKED_FILE, MENDED_FILE = "steps", "parked", "mended"


class Errand(BaseModel):
    """Which run it is, and the folder of its round: times are noted there, and a file says what is mended."""

    number: int
    folder: Path


class Done(BaseModel):
    """What the step returns."""

    number: int


def note(errand: Errand, file: str) -> None:
    """Append the run's number and the time, in one write."""
    number = os.open(errand.folder / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(number, f"{errand.number} {time.time()}\n".encode())
    os.close(number)


def _is_mended(errand: Errand) -> bool:
    note(errand, STEPS_FILE)
    return (errand.folder / MENDED_FILE).exists()


@module(STEP)
async def fragile(ctx: ModuleContext, errand: Errand) -> Done:
    """Do it as a Redrive module."""
    if not _is_mended(errand):
        raise Terminal("broken")
    return Done(number=errand.number)


Pipeline(PIPELINE, fragile)


@activity.defn
async def plain_fragile(errand: Errand) -> Done:
    """Do it as a plain activity."""
    if not _is_mended(errand):
        raise ApplicationError("broken", non_retryable=True)
    return Done(number=errand.number)
