"""A pipeline for workers that are processes of their own: what it does is said by files in a folder."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from redrive import STEP, ModuleContext, NoJitter, Pipeline, Terminal, Transient, module

POLICY = STEP.model_copy(
    update={"base": timedelta(seconds=1), "factor": 1.0, "jitter": NoJitter(), "max_attempts": 100}
)


class Folder(BaseModel):
    """Where the files are, and what else a caller sends."""

    folder: Path
    url: str = ""
    member_no: int | None = None
    details: dict[str, Any] = {}


class Worked(BaseModel):
    """What the step returns."""

    well: bool = True


@module("fragile", policy=POLICY)
async def fragile(ctx: ModuleContext, given: Folder) -> Worked:
    """Fail for good while there is a file `terminal`, for now while there is one `transient`."""
    with (given.folder / "calls").open("a") as calls:
        calls.write(f"{ctx.attempt}\n")
    for name, error in (("terminal", Terminal), ("transient", Transient)):
        if (given.folder / name).exists():
            raise error((given.folder / name).read_text())
    return Worked()


class Anything(BaseModel):
    """An input that every payload fits."""


@module("greeting", policy=POLICY)
async def greeting(ctx: ModuleContext, given: Anything) -> Worked:
    """Do nothing, so that the next step's input is not looked at when the run starts."""
    return Worked()


class Member(BaseModel):
    """An input that a payload may not fit."""

    member_no: int


@module("welcoming", policy=POLICY)
async def welcoming(ctx: ModuleContext, given: Member) -> Worked:
    """Need a number."""
    return Worked()


@module("calling", policy=POLICY.model_copy(update={"max_attempts": 1}))
async def calling(ctx: ModuleContext, given: Folder) -> Worked:
    """Call a service."""
    await ctx.http.request("POST", given.url, operation="call", json=given.details)
    return Worked()


Pipeline("fragile", fragile)
Pipeline("calling", calling)
Pipeline("welcoming", greeting, welcoming)
