"""Modules that tell the planted secrets, for a worker that is a process of its own: in errors, and in a result."""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from redrive import STEP, Category, ModuleContext, NoJitter, Pipeline, Terminal, Transient, module
from tests.hostile.secrets import DOCUMENTS, TEXTS

POLICY = STEP.model_copy(update={"base": timedelta(milliseconds=1), "jitter": NoJitter(), "max_attempts": 2})
SIZE = 12
BATCHES = [TEXTS[start : start + SIZE] for start in range(0, len(TEXTS), SIZE)]


class Given(BaseModel):
    """Which of the planted secrets to tell, and some of them to be stored with the input."""

    batch: int = 0
    planted: Any = None


class Told(BaseModel):
    """A result with secrets in it."""

    planted: Any


def told(batch: int) -> str:
    """Return the secrets of a batch as one text."""
    return "\n".join(planted.carrier for planted in BATCHES[batch])


@module("leaky", policy=POLICY)
async def leaky(ctx: ModuleContext, given: Given) -> Told:
    """Fail twice, with secrets in the error, its cause and the log."""
    ctx.log.warning("leaky.told", error=told(given.batch), planted=given.planted)
    if ctx.attempt == 1:
        raise Transient(told(given.batch), category=Category.NETWORK)
    raise Terminal(told(given.batch)) from ValueError(told(given.batch))


@module("telling", policy=POLICY)
async def telling(ctx: ModuleContext, given: Given) -> Told:
    """Return secrets."""
    return Told(planted=[planted.carrier for planted in (*TEXTS, *DOCUMENTS)])


Pipeline("leaky", leaky)
Pipeline("telling", telling)
