"""Projectors of tests: each keeps a table of its own, and breaks for as long as a test says."""

from collections import defaultdict
from datetime import timedelta

from pydantic import BaseModel

from redrive import STEP, Event, ModuleContext, NoJitter, Pipeline, Registry, Terminal, Transient

QUICK = STEP.model_copy(update={"base": timedelta(milliseconds=20), "jitter": NoJitter(), "max_attempts": 2})
PROJECTORS = ("qscore", "service-session")


class Interview(BaseModel):
    """What an interview's event carries."""

    user: str
    score: int


class Given(BaseModel):
    """What each projector reads."""

    event: Event[Interview]


class Score(BaseModel):
    """What a projector returns."""

    total: int


class SessionGiven(Given):
    """What the last projector reads: the first one's output, too."""

    qscore: Score


class Tables:
    """What the projectors have made, and how they are to fail."""

    def __init__(self) -> None:
        self.scores: dict[str, int] = {}
        self.sessions: dict[str, int] = {}
        self.calls: dict[str, int] = defaultdict(int)
        self.broken: dict[str, Exception] = {}
        self.bonus = 0

    def touch(self, ctx: ModuleContext) -> None:
        """Count a call, and fail if that is what the test wants."""
        self.calls[ctx.step] += 1
        if ctx.step in self.broken:
            raise self.broken[ctx.step]


def register(registry: Registry, tables: Tables) -> None:
    """Register the pipeline of `interview.completed`."""

    async def qscore(ctx: ModuleContext, given: Given) -> Score:
        tables.touch(ctx)
        tables.scores[given.event.payload.user] = given.event.payload.score + tables.bonus
        return Score(total=tables.scores[given.event.payload.user])

    async def session(ctx: ModuleContext, given: SessionGiven) -> Score:
        tables.touch(ctx)
        tables.sessions[given.event.dedupe_key] = given.qscore.total
        return given.qscore

    Pipeline(
        "interview-completed",
        registry.module("qscore", policy=QUICK, dedupe=True)(qscore),
        registry.module("service-session", policy=QUICK, dedupe=True)(session),
        registry=registry,
    )


AWAY = Transient("the scores' service does not answer")
WRONG = Terminal("the token is not accepted")
