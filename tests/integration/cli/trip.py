"""A pipeline for the tests of dead letters: each step fails for good while a file says so."""

from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, RetryPolicy, Terminal, module

QUICK = RetryPolicy(base=timedelta(milliseconds=50), cap=timedelta(seconds=1), max_attempts=2, timeout=timedelta(30))


class Trip(BaseModel):
    """Where the files are, and who travels."""

    folder: Path
    seats: int = 1
    password: str = ""


class Ticket(BaseModel):
    """What each step returns."""

    step: str


async def _work(ctx: ModuleContext, given: Trip) -> Ticket:
    with (given.folder / "calls").open("a") as calls:
        calls.write(f"{ctx.step}\n")
    if (given.folder / ctx.step).exists():
        raise Terminal((given.folder / ctx.step).read_text())
    if given.seats > 9:
        raise Terminal(f"{given.seats} seats are too many")
    return Ticket(step=ctx.step)


@module("book", policy=QUICK)
async def book(ctx: ModuleContext, given: Trip) -> Ticket:
    """Take seats."""
    given.seats = min(given.seats, 9)
    return await _work(ctx, given)


@module("pay", policy=QUICK)
async def pay(ctx: ModuleContext, given: Trip) -> Ticket:
    """Pay for at most nine."""
    return await _work(ctx, given)


@module("depart", policy=QUICK)
async def depart(ctx: ModuleContext, given: Trip) -> Ticket:
    """Go."""
    given.seats = 1
    return await _work(ctx, given)


Pipeline("trip", book, pay, depart)
