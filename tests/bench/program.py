"""What the benchmarks have in common as programs: arguments, JSON, tables, and the way they end."""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from redrive.errors import StackError
from redrive.logs import configure_logging

R = TypeVar("R")


def run_program(
    parser: argparse.ArgumentParser,
    bench: Callable[[argparse.Namespace], Awaitable[R]],
    results: TypeAdapter[R],
    tables: Callable[[R], list[Table]],
) -> NoReturn:
    """Run a benchmark by its arguments; print tables, or JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    words = parser.parse_args()
    configure_logging("warning")

    async def run() -> R:
        return await bench(words)

    try:
        found = asyncio.run(run())
    except StackError as error:
        end(f"bench: {error}")
    except TimeoutError:
        end("bench: not done in time; try fewer runs or rounds")
    if words.json:
        print(results.dump_json(found, indent=2).decode())
    else:
        show(*tables(found))
    end()


def show(*tables: Table) -> None:
    """Print tables, wide enough for a file too."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables:
        console.print(table)


def end(problem: str = "") -> NoReturn:
    """End this program."""
    if problem:
        print(problem, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(1 if problem else 0)


def count(text: str) -> int:
    """Read a number of runs or rounds."""
    number = int(text)
    if not 1 <= number <= 10_000:
        raise argparse.ArgumentTypeError("a number from 1 to 10000 is needed")
    return number


def shown(*numbers: float) -> list[str]:
    """Return numbers as cells of a table."""
    return [f"{number:.1f}" for number in numbers]
