"""Have a coding agent write a plan, and keep it as a file: one prompt and one artifact, however often it is retried.

The services are named `opencode` (its token is the server's password) and `gitea`:
`REDRIVE_SERVICES='{"opencode": {"base_url": "http://127.0.0.1:4096", "token": "…"}, "gitea": {…}}'`. An attempt that is
out of time leaves the agent at work, and the next one waits for the same answer.
"""

from datetime import timedelta

from pydantic import BaseModel, Field

from redrive import ModuleContext, Pipeline, RetryPolicy, module
from redrive.connectors.gitea import Gitea
from redrive.connectors.opencode import OpenCode

# An agent may work for ten minutes: the attempts wait for it, one after the other.
PATIENT = RetryPolicy(
    base=timedelta(seconds=1), cap=timedelta(seconds=10), max_attempts=12, timeout=timedelta(seconds=60)
)


class Goal(BaseModel):
    """What the caller sends. User and repository exist: `provision-workspace` creates them."""

    user: str
    repository: str
    goal: str = Field(min_length=1, max_length=10_000)


class Plan(BaseModel):
    """The agent's plan, and the message that it is from."""

    text: str
    message_id: str


class ToStore(BaseModel):
    """The payload's names and the output of the step `write-plan`."""

    user: str
    repository: str
    plan: Plan = Field(alias="write-plan")


class Stored(BaseModel):
    """The file that holds the plan."""

    path: str
    sha: str


@module("write-plan", policy=PATIENT)
async def write_plan(ctx: ModuleContext, given: Goal) -> Plan:
    """Ask the agent for a plan, once."""
    opencode = OpenCode(ctx.http.service("opencode"))
    session = await opencode.session(f"plan of {ctx.run_id}")
    reply = await opencode.ask(session, f"Write a plan in Markdown, without changing files, for: {given.goal}")
    return Plan(text=reply.text, message_id=reply.id)


@module("store-plan")
async def store_plan(ctx: ModuleContext, given: ToStore) -> Stored:
    """Keep the plan in the repository."""
    path = f"plans/{given.plan.message_id}.md"
    gitea = Gitea(ctx.http.service("gitea"))
    file = await gitea.create_file(given.user, given.repository, path, given.plan.text.encode())
    return Stored(path=file.path, sha=file.sha)


Pipeline("plan-workspace", write_plan, store_plan)
