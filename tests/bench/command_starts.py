"""Measure the CPU of commands, user and system, from start to end: `python -m tests.bench.command_starts`.

The commands take turns, on a stack of their own, with compiled code. The floors are scripts that do with
libraries alone what commands do: list runs, start one, read a row. Processes that serve are only imported.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter
from rich.table import Table

from redrive.places import STATE_DIR
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from tests.bench.contenders import with_bytecode
from tests.bench.program import count, run_program

REDRIVE = str(Path(sys.executable).with_name("redrive"))
LIST_ALONE = """
import asyncio, os, sys
from temporalio.client import Client

async def main():
    client = await Client.connect(sys.argv[1])
    async for each in client.list_workflows("WorkflowType = 'ModuleRun'", limit=21):
        pass

asyncio.run(main())
os._exit(0)
"""
START_ALONE = """
import asyncio, os, sys, uuid
from temporalio.client import Client

async def main():
    client = await Client.connect(sys.argv[1])
    await client.start_workflow("Floor", id=str(uuid.uuid4()), task_queue="nobody")

asyncio.run(main())
os._exit(0)
"""
READ_ALONE = """
import asyncio, os, sys
import asyncpg, cyclopts, pydantic_settings, rich.table, structlog

async def main():
    connection = await asyncpg.connect(sys.argv[1])
    await connection.fetch("SELECT 1")

asyncio.run(main())
os._exit(0)
"""
RUNS = 21
Seconds = dict[str, list[float]]


def commands(address: str, database_url: str) -> dict[str, list[str]]:
    """Return what is measured, by its title."""
    return {
        "python": [sys.executable, "-c", "pass"],
        "Temporal's client alone: connect and list": [sys.executable, "-c", LIST_ALONE, address],
        "Temporal's client alone: connect and start": [sys.executable, "-c", START_ALONE, address],
        "libraries alone: connect to PostgreSQL and read": [sys.executable, "-c", READ_ALONE, database_url],
        "redrive --help": [REDRIVE, "--help"],
        "redrive run list --help": [REDRIVE, "run", "list", "--help"],
        "redrive run list": [REDRIVE, "run", "list"],
        "redrive run start": [REDRIVE, "run", "start", "hello", "--payload", '{"name": "Ann"}'],
        "redrive dlq list": [REDRIVE, "dlq", "list"],
        "redrive dlq stats": [REDRIVE, "dlq", "stats"],
        "redrive bulk list": [REDRIVE, "bulk", "list"],
        "import redrive.worker": [sys.executable, "-c", "import redrive.worker"],
        "import redrive.processes.console": [sys.executable, "-c", "import redrive.processes.console"],
    }


async def measure(words: argparse.Namespace) -> Seconds:
    """Run each command so often; the first time, which compiles it, does not count."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as directory:
        place = Path(directory)
        async with Stack(Settings(), state_dir=place / STATE_DIR) as stack:
            environment = with_bytecode(os.environ, place)
            chosen = commands(stack.info.temporal_address, stack.info.database_url.get_secret_value())
            for _ in range(RUNS):
                await asyncio.to_thread(cpu_of_command, chosen["redrive run start"], place, environment)
            taken: Seconds = {title: [] for title in chosen}
            for _ in range(words.rounds + 1):
                for title, command in chosen.items():
                    taken[title].append(await asyncio.to_thread(cpu_of_command, command, place, environment))
    return {title: seconds[1:] for title, seconds in taken.items()}


def cpu_of_command(command: list[str], directory: Path, environment: Mapping[str, str]) -> float:
    """Run a command to its end and return the CPU that it took, in seconds."""
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=directory, env=environment, stdout=nothing, stderr=nothing)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


def tables(taken: Seconds) -> list[Table]:
    """Return medians, lowest and highest."""
    table = Table("CPU, s", "median", "lowest", "highest")
    for title, seconds in taken.items():
        table.add_row(title, *(f"{each:.2f}" for each in (statistics.median(seconds), min(seconds), max(seconds))))
    return [table]


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.command_starts", description=__doc__.partition(":")[0])
    parser.add_argument("--rounds", type=count, default=15, help="how often each command is run")
    run_program(parser, measure, TypeAdapter(Seconds), tables)


if __name__ == "__main__":
    main()
