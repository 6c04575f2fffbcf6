"""`redrive bulk watch`: an operation is followed until it has ended.

A bar on a terminal, a line for each change elsewhere.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from redrive.bulk_records import BulkStatus, BulkView
from redrive.connection import read_addresses
from redrive.postgres.tenancy import Pool
from redrive.starter.cli.bulk.lists import Bulk
from redrive.starter.cli.bulk.views import progress_line
from redrive.starter.cli.errors import BulkIncomplete
from redrive.starter.cli.records import database_errors, open_records
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, console, errors
from redrive.starter.cli.waiting import INTERVAL, until_answered
from redrive.store.bulk.lists import get_bulk


async def watch(bulk: Bulk, /, *, json: Json = False) -> None:
    """Follow a bulk operation until it has ended. Ctrl-C stops watching.

    **Example**

    `redrive bulk watch bulk-6e66dd01a1e2177540731697934191a0`
    """
    async with open_records(read_addresses()) as pool:
        found = await get_bulk(pool, None, bulk)
        view = await follow_bulk(pool, found.id, quiet=json)
    if json:
        print_json(view)
    judge(view)


class _Shower(Protocol):
    def __call__(self, view: BulkView) -> None: ...


async def follow_bulk(pool: Pool, bulk_id: str, *, quiet: bool) -> BulkView:
    """Show progress until the end, and return the last view. Ctrl-C stops the display, not the bulk operation."""
    try:
        with _shower(quiet=quiet) as show:
            while True:
                view = await until_answered(partial(_view, pool, bulk_id))
                show(view)
                if view.status.closed:
                    return view
                await asyncio.sleep(INTERVAL)
    except asyncio.CancelledError:
        errors.print(f"no longer watching; {bulk_id} goes on: see `redrive bulk show {bulk_id}`", markup=False)
        raise


def judge(view: BulkView) -> None:
    """Raise if not everything was applied."""
    now = view.progress
    if view.status is BulkStatus.STOPPED or now.failed or now.skipped:
        stopped = f"stopped: {view.stopped_because}; " if view.status is BulkStatus.STOPPED else ""
        raise BulkIncomplete(
            f"{stopped}{now.applied} of {now.total} applied, {now.skipped} skipped, {now.failed} failed: "
            f"see `redrive bulk items {view.id} --status {'failed' if now.failed else 'skipped'}`"
        )


async def _view(pool: Pool, bulk_id: str) -> BulkView:
    with database_errors():
        return await get_bulk(pool, None, bulk_id)


def _say_nothing(view: BulkView) -> None:
    """Show nothing: a script reads only the end."""
    del view


@contextmanager
def _shower(*, quiet: bool) -> Iterator[_Shower]:
    if quiet:
        yield _say_nothing
    elif console.is_terminal:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=None)

            def draw(view: BulkView) -> None:
                now = view.progress
                told = f"{view.status}  applied {now.applied}  skipped {now.skipped}  failed {now.failed}"
                ended = now.applied + now.skipped + now.failed
                bar.update(task, total=now.total, completed=ended, description=told)

            yield draw
    else:
        said = ""

        def tell(view: BulkView) -> None:
            nonlocal said
            line = f"{view.status}  {progress_line(view.progress)}"
            if line != said:
                console.print(line, markup=False, soft_wrap=True)
            said = line

        yield tell
