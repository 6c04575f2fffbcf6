"""Projectors for real processes: each writes lines into a folder, and breaks while a file there says so."""

from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from redrive import STEP, Event, ModuleContext, NoJitter, Pipeline, Terminal, module

QUICK = STEP.model_copy(update={"base": timedelta(milliseconds=20), "jitter": NoJitter(), "max_attempts": 2})


class Visit(BaseModel):
    """Where the files are, and what is projected."""

    folder: Path
    n: int = 0
    password: str = ""


class Given(BaseModel):
    """What each projector reads."""

    event: Event[Visit]


class Counted(BaseModel):
    """What each projector returns."""

    n: int


async def _project(ctx: ModuleContext, given: Given) -> Counted:
    visit = given.event.payload
    if (visit.folder / f"{ctx.step}.broken").exists():
        raise Terminal(f"{ctx.step} cannot be reached")
    with (visit.folder / ctx.step).open("a") as lines:
        lines.write(f"{visit.n}\n")
    return Counted(n=visit.n)


@module("count-visits", policy=QUICK, dedupe=True)
async def count_visits(ctx: ModuleContext, given: Given) -> Counted:
    """Count a visit."""
    return await _project(ctx, given)


@module("greet-visitor", policy=QUICK, dedupe=True)
async def greet_visitor(ctx: ModuleContext, given: Given) -> Counted:
    """Say hello."""
    return await _project(ctx, given)


Pipeline("visit-made", count_visits, greet_visitor)
