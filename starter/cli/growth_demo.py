"""`redrive demo growth`: the tests and drills of a whole platform, one after the other, with what they found."""

import contextlib
import json
import os
import shlex
import time
from collections.abc import AsyncIterator
from typing import Any

from rich.text import Text

from redrive.bridges.events.settings import EventSettings
from redrive.errors import RedriveError
from redrive.examples.growth.database import VARIABLE
from redrive.settings import read_environment
from redrive.starter.cli.terminal import console
from redrive.starter.growth.servers import keep_database, redis_for
from redrive.starter.growth.stories import DRILLS, TESTS, Facts, Story
from redrive.starter.growth.system import STREAM, TASK_QUEUE, TENANT, GrowthSystem, running_system
from redrive.starter.stack.state import StackInfo


@contextlib.asynccontextmanager
async def told_growth(info: StackInfo) -> AsyncIterator[GrowthSystem]:
    """Play all stories on a stack, raise if one did not go as it should, and yield the platform, still running."""
    console.print("starting Redis, four services, a worker and a bridge …")
    began = time.monotonic()
    url = os.environ.get(VARIABLE) or await keep_database((info.owner_url or info.database_url).get_secret_value())
    # The example's resource reads it, in the worker that runs in this process.
    os.environ[VARIABLE] = url
    async with (
        redis_for(info, read_environment(EventSettings)) as redis_url,
        running_system(info, redis_url, url) as system,
    ):
        failed = await _played(system, "Integration tests", TESTS) + await _played(system, "Staging drills", DRILLS)
        count = len(TESTS) + len(DRILLS)
        console.print(f"\n{count - len(failed)} of {count} went as they should, in {time.monotonic() - began:.1f} s.")
        if failed:
            raise RedriveError(f"the demo did not go as it should: {'; '.join(story.title for story in failed)}")
        yield system


async def _played(system: GrowthSystem, title: str, stories: tuple[Story, ...]) -> list[Story]:
    """Play stories, show what each found, and return those that failed."""
    console.print(Text(f"\n{title}", style="bold"))
    failed = []
    for number, story in enumerate(stories, 1):
        began = time.monotonic()
        facts = await story.play(system)
        _show(number, story, facts, time.monotonic() - began)
        if facts != story.expected:
            failed.append(story)
    return failed


def _show(number: int, story: Story, facts: Facts, seconds: float) -> None:
    passed = facts == story.expected
    mark = Text("ok    ", style="green") if passed else Text("failed", style="bold red")
    console.print(Text(f" {number}  ") + mark + Text(f"  {story.title}  ({seconds:.1f} s)"), soft_wrap=True)
    for name, value in facts.items():
        line = Text(f"            {name}: {_text(value)}", style="dim")
        if value != story.expected.get(name):
            line += Text(f"  expected {_text(story.expected.get(name))}", style="red")
        console.print(line, soft_wrap=True)


def _text(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{name} {_text(each)}" for name, each in value.items()) or "none"
        case tuple() | list():
            return ", ".join(_text(each) for each in value) or "none"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)


def print_environment(system: GrowthSystem) -> None:
    """Show which variables lead other commands to the platform."""
    redis_url = system.events.url(system.settings)
    console.print("The platform keeps running. In another terminal, in this directory:")
    variables = {
        "REDRIVE_TASK_QUEUE": TASK_QUEUE,
        "REDRIVE_EVENTS_STREAM": STREAM,
        "REDRIVE_EVENTS_TENANT": TENANT,
        "REDRIVE_EVENTS_LABELS": json.dumps(system.events.labels),
        "REDIS_URL": redis_url,
    }
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    console.print(f"  export {words}", soft_wrap=True, markup=False, highlight=False)
    console.print("Ctrl-C stops everything.")
