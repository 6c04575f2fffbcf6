"""A mission: an interview is configured, a language model writes a brief, an agent a plan, and Gitea keeps it.

The services are named `interview`, `llm`, `opencode` and `gitea`. Each step may be repeated at any point: the interview
service knows the step's idempotency key, the agent the id of the prompt, Gitea and the database what is there.
"""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from redrive import SERVICE_CALL, Hidden, ModuleContext, module
from redrive.connectors.gitea import Gitea
from redrive.connectors.llm import Budget, Llm, Usage
from redrive.connectors.opencode import OpenCode
from redrive.examples.growth.database import ArtifactKey, growth_database, open_mission, put_artifact

MODEL = "stand-in"
TOKENS_PER_RUN = 20_000
# An agent may work for minutes: the attempts wait for it, one after the other.
PATIENT = SERVICE_CALL.model_copy(update={"max_attempts": 10, "timeout": timedelta(seconds=60)})
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]


class Mission(BaseModel):
    """What the caller sends. The user's repository exists: `provision-workspace` creates it."""

    user: Name
    mission: Name = "interview"
    mission_instance_id: Name
    repository: Name = "work"
    goal: Hidden[str] = Field(min_length=1, max_length=10_000)


class Opened(BaseModel):
    """The mission's instance exists."""

    mission_instance_id: str


class Session(BaseModel):
    """An interview that is configured."""

    id: str


class Verdict(BaseModel):
    """What the language model is asked for."""

    level: Literal["junior", "senior"]
    topics: list[str]


class Brief(BaseModel):
    """The model's verdict, and what it cost."""

    verdict: Verdict
    usage: Usage


class ToPlan(Mission):
    """The mission and its brief."""

    brief: Brief


class Plan(BaseModel):
    """The agent's plan, and the message that it is from."""

    text: str
    message_id: str


class ToPublish(Mission):
    """The mission and its plan."""

    plan: Plan = Field(alias="interview-plan")


class Published(BaseModel):
    """The file and the artifact that hold the plan."""

    path: str
    sha: str
    artifact: str


@module("open-mission", policy=SERVICE_CALL)
async def begin_mission(ctx: ModuleContext, given: Mission) -> Opened:
    """Create the mission's instance, which events then refer to."""
    pool = await ctx.resource(growth_database).pool()
    await open_mission(pool, given.mission_instance_id, given.mission, given.user)
    return Opened(mission_instance_id=given.mission_instance_id)


@module("interview", policy=SERVICE_CALL)
async def configure_interview(ctx: ModuleContext, given: Mission) -> Session:
    """Configure an interview session, once."""
    body = {"user": given.user, "mission_instance_id": given.mission_instance_id}
    service = ctx.http.service("interview")
    return await service.post("/sessions", operation="configure", json=body, returns=Session)


@module("brief", timeout=timedelta(minutes=1))
async def write_brief(ctx: ModuleContext, given: Mission) -> Brief:
    """Have the language model judge what the user needs. An answer that does not fit is not asked for again."""
    model = Llm(ctx.http.service("llm"), model=MODEL, budget=Budget(ctx.counters, TOKENS_PER_RUN))
    answer = await model.ask(given.goal, system="Judge what this candidate has to practise.", returns=Verdict)
    return Brief(verdict=answer.value, usage=answer.usage)


@module("interview-plan", policy=PATIENT)
async def write_plan(ctx: ModuleContext, given: ToPlan) -> Plan:
    """Have the agent write a plan: one prompt, however often the step is tried."""
    opencode = OpenCode(ctx.http.service("opencode"))
    session = await opencode.session(f"mission {given.mission_instance_id} of {ctx.run_id}")
    topics = ", ".join(given.brief.verdict.topics)
    reply = await opencode.ask(session, f"Write an interview plan in Markdown on: {topics}", operation="prompt-v4")
    return Plan(text=reply.text, message_id=reply.id)


@module("publish-plan", policy=SERVICE_CALL)
async def publish_plan(ctx: ModuleContext, given: ToPublish) -> Published:
    """Keep the plan as a file and as an artifact, both named by the agent's message."""
    plan = given.plan
    path = f"plans/{plan.message_id}.md"
    file = await Gitea(ctx.http.service("gitea")).create_file(given.user, given.repository, path, plan.text.encode())
    pool = await ctx.resource(growth_database).pool()
    key = ArtifactKey(given.mission_instance_id, "opencode", plan.message_id, "interview-plan")
    await put_artifact(pool, key, plan.text)
    return Published(path=path, sha=file.sha, artifact=plan.message_id)
