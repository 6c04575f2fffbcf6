"""What an interview that was completed changes: four projectors, each of which can run any number of times."""

from typing import Literal

from pydantic import AwareDatetime, BaseModel, Field

from redrive import EVENT, Event, ModuleContext, module
from redrive.examples.growth.database import (
    ArtifactKey,
    complete_stage,
    growth_database,
    put_artifact,
    put_scores,
    put_session,
)

SERVICE = "interview"


class Completed(BaseModel):
    """The event's payload. It is checked before the event is accepted."""

    user_id: str = Field(min_length=1)
    mission_instance_id: str = Field(min_length=1)
    session_id: str = Field(min_length=1)
    completed_at: AwareDatetime
    scores: dict[str, int] = Field(min_length=1, max_length=50, description="by signal")
    report: str = ""

    @property
    def weakest(self) -> str:
        """The signal with the lowest score; of equal ones the first by name."""
        return min(sorted(self.scores), key=lambda signal: self.scores[signal])


class Given(BaseModel):
    """What every projector reads."""

    event: Event[Completed]


class Scores(BaseModel):
    """The scores that were kept."""

    scores: dict[str, int]


class Session(BaseModel):
    """The session that was kept."""

    service_id: str
    external_id: str
    status: Literal["completed"] = "completed"


class Stage(BaseModel):
    """Where the mission is now."""

    progress: int
    suggestion: str


class Artifact(BaseModel):
    """The artifact that was kept."""

    external_id: str
    type: str


@module("qscore", policy=EVENT)
async def qscore(ctx: ModuleContext, given: Given) -> Scores:
    """Keep the latest score of each of a user's signals: by (user, signal)."""
    payload = given.event.payload
    pool = await ctx.resource(growth_database).pool()
    await put_scores(pool, payload.user_id, payload.scores, payload.completed_at)
    return Scores(scores=payload.scores)


@module("service-session", policy=EVENT)
async def service_session(ctx: ModuleContext, given: Given) -> Session:
    """Keep the interview's session: by (service, the service's id)."""
    payload = given.event.payload
    pool = await ctx.resource(growth_database).pool()
    kept = Session(service_id=SERVICE, external_id=payload.session_id)
    await put_session(pool, SERVICE, payload.session_id, payload.mission_instance_id, kept.status)
    return kept


@module("mission-stage", policy=EVENT)
async def mission_stage(ctx: ModuleContext, given: Given) -> Stage:
    """Mark the stage as done: progress and the one suggestion follow from the event alone."""
    payload = given.event.payload
    pool = await ctx.resource(growth_database).pool()
    suggestion = f"Practise {payload.weakest}"
    progress = await complete_stage(pool, payload.mission_instance_id, "interview", suggestion)
    return Stage(progress=progress, suggestion=suggestion)


@module("artifact", policy=EVENT)
async def artifact(ctx: ModuleContext, given: Given) -> Artifact:
    """Keep the interview's report: by (mission instance, service, the service's id, type)."""
    payload = given.event.payload
    pool = await ctx.resource(growth_database).pool()
    key = ArtifactKey(payload.mission_instance_id, SERVICE, payload.session_id, "report")
    await put_artifact(pool, key, payload.report)
    return Artifact(external_id=key.external_id, type=key.type)
