"""`redrive demo`: Redrive in under a minute."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import SecretStr
from rich.live import Live
from rich.text import Text

from redrive import Redrive
from redrive.contracts import RunStatus, RunView, StepStatus
from redrive.errors import RedriveError
from redrive.examples.site import serving
from redrive.logs import configure_logging
from redrive.modules import load_modules
from redrive.postgres.database import Database
from redrive.processes.program import until_signalled
from redrive.settings import ServiceSettings, Settings, read_settings
from redrive.starter.cli.runs.views import attempts_text, last_error, status_text
from redrive.starter.cli.terminal import Listing, command_line, console
from redrive.starter.cli.up import print_addresses
from redrive.starter.demo import SCENES, Shop, as_told, at_rest, healed, replayed, rescue
from redrive.starter.stack.stack import Stack
from redrive.starter.stack.state import StackInfo, find_running
from redrive.worker import running_worker

TASK_QUEUE = "redrive-demo"
TENANT = "demo"
TIMEOUT = 25.0
INTERVAL = 0.2
INTERRUPTED = 130


async def demo(
    story: Annotated[Literal["growth"] | None, Parameter(name="STORY")] = None, /, *, keep: bool = False
) -> int:
    """Watch real runs on a real Temporal server: some succeed, some succeed after retries, one is replayed.

    Starts the embedded stack unless `redrive up` is running, and a small shop that answers with 503s, a 429, a hang
    and a 400. No retry fixes the 400: the run is parked, its dead letter is shown, its input is fixed and it is
    replayed to success. Takes about ten seconds; state is kept in `.redrive/`.

    **Examples**

    `redrive demo`

    `redrive demo --keep` leaves the stack running, to show the runs in the Temporal Web UI.

    `redrive demo growth` shows a whole platform in small: events from Redis, projectors, calls of four services, and
    what happens when each of them fails.

    Parameters
    ----------
    story
        `growth`: the example of that name instead of the shop.
    keep
        Leave the stack running afterwards, until Ctrl-C.
    """
    # Log lines of each failed attempt would hide the table.
    configure_logging("error", "auto")
    # The dead letter is part of the demo: its alert is not an error.
    logging.getLogger("redrive.activities.alerts").setLevel(logging.CRITICAL)
    told = False
    async with until_signalled(), _stack(read_settings(), workers=0 if story else 1) as (info, stack):
        if story == "growth":
            # Here: otherwise its modules would be those of the shop's worker as well.
            from redrive.starter.cli.growth_demo import print_environment, told_growth  # noqa: PLC0415

            async with told_growth(info) as system:
                told = True
                if keep:
                    print_environment(system)
                    await asyncio.Event().wait()
            return 0
        views = await _play(info)
        _summarise(info, views, stays=keep or stack is None)
        if not as_told(views):
            raise RedriveError("the demo did not go as it should: see the table above")
        told = True
        if keep and stack:
            print_addresses(stack)
            await asyncio.Event().wait()
    return 0 if told else INTERRUPTED


@contextlib.asynccontextmanager
async def _stack(settings: Settings, workers: int) -> AsyncIterator[tuple[StackInfo, Stack | None]]:
    """Use the stack that is running here, or start one."""
    running = find_running(settings.state_dir)
    if running:
        console.print(f"using the stack that runs here (Temporal at {running.temporal_address})")
        yield running, None
        return
    console.print("starting Temporal and PostgreSQL …")
    async with Stack(settings, workers=workers) as stack:
        yield stack.info, stack


async def _play(info: StackInfo) -> list[RunView]:
    """Run all scenes against the flaky shop, with the demo's own worker, which knows the shop's address."""
    load_modules(["redrive.examples"])
    async with serving(Shop().answer) as shop:
        settings = Settings(
            temporal_address=info.temporal_address,
            temporal_namespace=info.namespace,
            database_url=SecretStr(info.database_url.get_secret_value()),
            task_queue=TASK_QUEUE,
            services={"shop": ServiceSettings(base_url=shop.url)},
        )
        async with running_worker(settings), Database(info.database_url.get_secret_value()) as database:
            redrive = await Redrive.connect(settings)
            started = [await redrive.start(scene.pipeline, scene.payload, tenant=TENANT) for scene in SCENES]
            run_ids = [run.run_id for run in started]
            views = await _watch(redrive, run_ids, until=at_rest)
            console.print(_table(views))
            console.print()
            for scene, view in zip(SCENES, views, strict=True):
                if view.status is RunStatus.DLQ_PENDING:
                    await rescue(redrive, database, scene, view)
            return await _watch(redrive, run_ids, until=lambda view: view.status.closed)


async def _watch(redrive: Redrive, run_ids: list[str], *, until: Callable[[RunView], bool]) -> list[RunView]:
    """Show the runs live until the condition holds for all."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + TIMEOUT
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            views = list(await asyncio.gather(*(redrive.status(run_id) for run_id in run_ids)))
            if console.is_terminal:
                live.update(_table(views), refresh=True)
            if all(until(view) for view in views) or loop.time() > give_up:
                return views
            await asyncio.sleep(INTERVAL)


def _table(views: list[RunView]) -> Listing:
    table = Listing("run", "what happens", "status", "steps", "attempts", "last error")
    for scene, view in zip(SCENES, views, strict=True):
        steps = Text(" ").join(Text(step.name, style=_style(step.status)) for step in view.steps)
        busy = [step for step in view.steps if step.attempt > 1 or step.failure or step.attempts or step.cycle > 1]
        attempts = ", ".join(f"{step.name} {attempts_text(step)}" for step in busy)
        error = last_error(busy[-1]) if busy else Text("")
        table.add_row(scene.title, scene.about, status_text(view.status), steps, attempts, error)
    return table


def _style(status: StepStatus) -> str:
    return {
        StepStatus.SUCCESS: "green",
        StepStatus.RUNNING: "cyan",
        StepStatus.RETRYING: "yellow",
        StepStatus.DLQ: "bold red",
        StepStatus.FAILED: "red",
    }.get(status, "dim")


def _summarise(info: StackInfo, views: list[RunView], *, stays: bool) -> None:
    succeeded = [view for view in views if view.status is RunStatus.SUCCESS]
    after_retries, after_replay = (sum(map(kind, views)) for kind in (healed, replayed))
    console.print(_table(views))
    console.print()
    console.print(
        f"{len(views)} runs: {len(succeeded)} succeeded, {after_retries} after retries, "
        f"{after_replay} after a replay. None was lost."
    )
    if info.web_ui:
        console.print(
            "In the Temporal Web UI:" if stays else f"In the Temporal Web UI, while `{command_line()} up` runs here:"
        )
        for scene, view in zip(SCENES, views, strict=True):
            link = f"{info.web_ui}/namespaces/{info.namespace}/workflows/{view.run_id}"
            console.print(f"  {scene.title:<13} {link}", soft_wrap=True)
    if not stays:
        again = command_line()
        console.print(f"Next: `{again} up`, then, in another terminal:")
        # As one line, whatever the width: a command that is broken in two cannot be pasted.
        console.print(f'  {again} run start hello --payload \'{{"name": "Ada"}}\' --wait', soft_wrap=True)
