"""The step that fails for good until a file says that the cause is fixed, and the records of the hand-written run."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from redrive import ModuleContext, Pipeline, Terminal, module

if TYPE_CHECKING:
    import asyncpg

PIPELINE, STEP = "bench-fragile", "fragile"
STEPS_FILE, PARKED_FILE, FIXED_FILE = "steps", "parked", "fixed"
URL = "BENCH_LETTERS_URL"
# The table of the hand-written run: what an operator's list needs.
TABLE = """
    CREATE TABLE bench_letters (
        run_id text PRIMARY KEY, round text NOT NULL, input jsonb NOT NULL, error text NOT NULL, status text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now()
    )
"""
_WRITE = """
    INSERT INTO bench_letters (run_id, round, input, error, status) VALUES ($1, $2, $3, $4, 'pending')
    ON CONFLICT (run_id) DO UPDATE SET error = excluded.error, status = 'pending', updated_at = now()
"""
_CLOSE = "UPDATE bench_letters SET status = 'replayed', updated_at = now() WHERE run_id = $1"


class Errand(BaseModel, frozen=True):
    """Which run it is, and the folder of its round: times are noted there, and a file says what is fixed."""

    number: int
    folder: Path


class Done(BaseModel):
    """What the step returns."""

    number: int


class LetterRow(BaseModel):
    """What the hand-written run records."""

    run_id: str
    errand: Errand
    error: str


class Records:
    """The worker's connections for the hand-written run."""

    pool: "asyncpg.Pool[asyncpg.Record]"


def note(errand: Errand, file: str) -> None:
    """Append the run's number and the time, in one write."""
    number = os.open(errand.folder / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(number, f"{errand.number} {time.time()}\n".encode())
    os.close(number)


def _is_fixed(errand: Errand) -> bool:
    note(errand, STEPS_FILE)
    return (errand.folder / FIXED_FILE).exists()


@module(STEP)
async def fragile(ctx: ModuleContext, errand: Errand) -> Done:
    """Do it as a Redrive module."""
    if not _is_fixed(errand):
        raise Terminal("broken")
    return Done(number=errand.number)


Pipeline(PIPELINE, fragile)


@activity.defn
async def plain_fragile(errand: Errand) -> Done:
    """Do it as a plain activity."""
    if not _is_fixed(errand):
        raise ApplicationError("broken", non_retryable=True)
    return Done(number=errand.number)


@activity.defn
async def write_record(row: LetterRow) -> None:
    """Record that a run is parked, as the hand-written run does."""
    given = row.errand.model_dump_json()
    await Records.pool.execute(_WRITE, row.run_id, row.errand.folder.name, given, row.error)


@activity.defn
async def close_record(run_id: str) -> None:
    """Record that the replay has succeeded, as the hand-written run does."""
    await Records.pool.execute(_CLOSE, run_id)
