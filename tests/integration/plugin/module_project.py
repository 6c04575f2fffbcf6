"""Workflows that call modules, and the modules, which fail as a test says."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from redrive import STEP, Hidden, ModuleContext, Pipeline, Registry, Terminal, Transient
from redrive.plugin import errors_raised
from redrive.workflow import run_module

REGISTRY = Registry()
POLICY = STEP.model_copy(update={"base": timedelta(milliseconds=10), "timeout": timedelta(seconds=5)})


class User(BaseModel):
    """Whom a workflow is about."""

    case: str
    name: str = "ada"
    age: int = 36
    note: Hidden[str] = "likes numbers"


class Profile(BaseModel):
    """What is known of a user."""

    name: str
    visits: int = 1


class Credit(BaseModel):
    """What a user may spend."""

    limit: int


class Step(BaseModel):
    """One turn of a loop."""

    case: str
    turn: int


@dataclass
class Outside:
    """The outside world of one case."""

    broken: set[str] = field(default_factory=set)
    calls: list[tuple[str, str, int]] = field(default_factory=list)

    def keys(self, name: str) -> list[str]:
        """The keys that a module was called with."""
        return [key for called, key, _ in self.calls if called == name]


CASES: dict[str, Outside] = {}


def _call(ctx: ModuleContext, case: str, name: str) -> None:
    outside = CASES[case]
    outside.calls.append((name, ctx.idempotency_key, ctx.attempt))
    if name in outside.broken:
        raise Transient(f"{name} is away, password=hunter22")


@REGISTRY.module("fetch-profile", policy=POLICY)
async def fetch_profile(ctx: ModuleContext, user: User) -> Profile:
    """Fetch what is known of a user."""
    _call(ctx, user.case, "fetch-profile")
    return Profile(name=f"{user.name}, {user.age}")


@REGISTRY.module("check-credit", policy=POLICY)
async def check_credit(ctx: ModuleContext, user: User) -> Credit:
    """Look up a limit."""
    _call(ctx, user.case, "check-credit")
    if ctx.attempt < 2:
        raise Transient("busy")
    return Credit(limit=user.age * 10)


@REGISTRY.module("count", policy=POLICY, fast=True)
async def count(ctx: ModuleContext, step: Step) -> Step:
    """Count, inside the workflow task."""
    _call(ctx, step.case, "count")
    return step


@REGISTRY.module("refuse", policy=POLICY)
async def refuse(ctx: ModuleContext, user: User) -> Profile:
    """Fail for good."""
    _call(ctx, user.case, "refuse")
    raise Terminal("never")


@workflow.defn
class Onboarding:
    """Two modules at once; what was done is undone when one is discarded."""

    @workflow.run
    async def run(self, user: dict[str, Any]) -> list[Any]:
        given = User.model_validate(user)
        try:
            profile, credit = await asyncio.gather(run_module(fetch_profile, given), run_module(check_credit, given))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            again = await run_module(count, {"case": given.case, "turn": 0})
            raise ApplicationError(f"undone {again.turn}", type="Undone") from error
        return [profile.name, profile.visits, credit.limit]


@workflow.defn
class Loop:
    """The same module many times, and a choice."""

    @workflow.run
    async def run(self, case: str, turns: int) -> list[int]:
        steps = [await run_module(count, Step(case=case, turn=turn)) for turn in range(turns)]
        return [step.turn for step in steps]


@workflow.defn
class Careful:
    """Clean up by a module when canceled, take another way when one fails, and run one from a signal."""

    def __init__(self) -> None:
        self._profiles: list[str] = []

    @workflow.run
    async def run(self, user: dict[str, Any]) -> list[str]:
        given = User.model_validate(user)
        with errors_raised():
            try:
                await run_module(refuse, given)
            except ActivityError:
                self._profiles.append("refused")
        try:
            await workflow.wait_condition(lambda: len(self._profiles) > 2)
        except asyncio.CancelledError:
            self._profiles.append((await run_module(fetch_profile, given)).name)
        return self._profiles

    @workflow.query
    def count(self) -> int:
        """Tell how many profiles there are."""
        return len(self._profiles)

    @workflow.signal
    async def look(self, user: dict[str, Any]) -> None:
        """Fetch the profile."""
        self._profiles.append((await run_module(fetch_profile, User.model_validate(user))).name)


Pipeline("profiles", fetch_profile, registry=REGISTRY)
WORKFLOWS: list[type] = [Onboarding, Loop, Careful]
REGISTRY.workflows += WORKFLOWS
