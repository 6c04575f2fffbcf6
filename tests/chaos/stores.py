"""Every fault there is under runs, commands, cancels and resets, then a comparison: `python -m tests.chaos.stores`.

Ends with 0 when the sink, Temporal, PostgreSQL and every key's answer agree by themselves some time after the last
fault, and with 1 and what differs otherwise. Nobody calls `reconcile`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from redrive.dead_letters import LetterId
from redrive.errors import Unavailable
from redrive.logs import configure_logging
from redrive.starter.stack.ports import reserve
from tests.acceptance.live import ROOT, Up, working_directory
from tests.chaos.agreement import Agreement, tracebacks
from tests.chaos.case import clock
from tests.chaos.faults import Faults
from tests.chaos.traffic import MoodySink, Traffic

MODULES = "tests.chaos.modules"
SHOWN = 20
REPLAYED_AT_ONCE = 50
# Of replays: what still waits after these never ends.
ROUNDS = 200
SERVERS = ("temporal", "ui", "postgres", "console")


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.stores", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--starters", type=int, default=6, help="who start runs at once")
    parser.add_argument("--operators", type=int, default=4, help="who send commands at once")
    parser.add_argument("--trouble", type=float, default=60.0, help="at least so many seconds of faults")
    parser.add_argument("--pause", type=float, default=3.0, help="at most so many seconds between two faults")
    parser.add_argument("--settle", type=float, default=150.0, help="how long everything may take to agree afterwards")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--keep", action="store_true", help="leave the logs")
    words = parser.parse_args()
    configure_logging("error")
    # The client of Temporal tells of each retry, on standard error.
    Runtime.set_default(
        Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=TelemetryFilter("ERROR", "ERROR"))))
    )
    problems = asyncio.run(_chaos(words))
    for problem in problems[:SHOWN]:
        print(f"  VIOLATION: {problem}")
    for kind, count in Counter(problem.partition(": ")[2] for problem in problems).most_common(SHOWN):
        print(f"  {count} times: {kind}")
    print(f"{len(problems)} violations" if problems else "no violation")
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(1 if problems else 0)


@contextlib.asynccontextmanager
async def stage(workers: int, seed: int) -> AsyncIterator[tuple[Up, MoodySink]]:
    """Bring up a stack with fixed ports, so that clients find it again after a crash, and a service that refuses."""
    with working_directory() as directory:
        async with MoodySink(seed).serving() as sink:
            ports = [word for name in SERVERS for word in (f"--{name}-port", str(_free_port(name)))]
            variables = {
                "REDRIVE_SERVICES": json.dumps({"sink": {"base_url": sink.address}}),
                "PYTHONPATH": str(ROOT),
                "REDRIVE_LOG_FORMAT": "json",
            }
            up = Up(directory, "--modules", MODULES, "--workers", str(workers), *ports, variables=variables)
            await asyncio.to_thread(up.__enter__)
            try:
                yield up, sink
            finally:
                await asyncio.to_thread(up.__exit__)


def _free_port(name: str) -> int:
    reservation = reserve(name, asked=None, preferred=random.randrange(20_000, 30_000))
    try:
        return reservation.number
    finally:
        reservation.close()


async def _chaos(words: argparse.Namespace) -> list[str]:
    print(f"seed {words.seed}, {words.runs} runs, {words.workers} workers", flush=True)
    async with stage(words.workers, words.seed) as (up, sink), Traffic.of(up, sink, words.seed) as traffic:
        faults, seconds = Faults(up, words.seed, words.pause), clock()
        async with faults.going_on(), _progress(traffic, faults, seconds):
            await _live(traffic, words, seconds)
        print(
            f"{len(traffic.runs)} runs, {len(traffic.answers)} commands answered, {traffic.canceled} cancels, "
            f"{len(traffic.reset)} resets in {seconds():.0f} s; {dict(faults.done)}",
            flush=True,
        )
        problems = await settle(traffic, words.settle)
        if words.keep:
            print(f"logs are in {_kept(up)}")
        return problems + tracebacks(up.directory / ".redrive" / "logs")


@contextlib.asynccontextmanager
async def _progress(traffic: Traffic, faults: Faults, seconds: Callable[[], float]) -> AsyncIterator[None]:
    """Print every minute how far it is: on a busy machine it takes long."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(60)
            print(f"{seconds():.0f} s: {len(traffic.runs)} runs, {faults.done.total()} faults", flush=True)

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()


async def _live(traffic: Traffic, words: argparse.Namespace, seconds: Callable[[], float]) -> None:
    """Start all runs while others send commands, ask keys and reset runs."""
    stop = asyncio.Event()
    others = [
        *(traffic.operate(stop) for _ in range(words.operators)),
        traffic.ask_keys(stop),
        traffic.reset_some(stop),
    ]
    async with asyncio.TaskGroup() as tasks:
        for other in others:
            tasks.create_task(other)
        # The starts are spread over the faults.
        await _side_by_side(
            words.starters, words.runs, traffic.start, pause=words.trouble * words.starters / words.runs
        )
        await asyncio.sleep(max(0.0, words.trouble - seconds()))
        stop.set()


async def _side_by_side(width: int, count: int, work: Callable[[int], Awaitable[None]], *, pause: float) -> None:
    numbers = iter(range(count))

    async def one() -> None:
        for number in numbers:
            await work(number)
            await asyncio.sleep(pause * random.uniform(0, 1.6))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(width):
            tasks.create_task(one())


async def settle(traffic: Traffic, limit: float) -> list[str]:
    """Replay what waits, and wait until everything agrees; return what does not in the end."""
    traffic.sink.healthy = True
    seconds, rounds = clock(), ROUNDS
    while True:
        if rounds and (waiting := await traffic.waiting(REPLAYED_AT_ONCE)):
            await asyncio.gather(*(_replay(traffic, each.letter, f"last-{uuid.uuid4()}") for each in waiting))
            # The limit is for agreement after the last replay, however many there were.
            seconds, rounds = clock(), rounds - 1
            continue
        agreement = Agreement(traffic)
        await traffic.insist(agreement.read)
        problems = agreement.problems()
        if not problems or seconds() > limit:
            print(f"{'agreed' if not problems else 'gave up'} after {seconds():.0f} s", flush=True)
            return problems + await agreement.answers() + await agreement.commands()
        await asyncio.sleep(2)


async def _replay(traffic: Traffic, letter: LetterId, request_id: str) -> None:
    with contextlib.suppress(Unavailable):
        await traffic.redrive.dead_letters.replay(
            letter, requested_by="ada", reason="the service is back", request_id=request_id
        )


def _kept(up: Up) -> str:
    target = tempfile.mkdtemp(prefix="redrive-chaos-logs-")
    shutil.copytree(up.directory / ".redrive" / "logs", target, dirs_exist_ok=True)
    return target


if __name__ == "__main__":
    main()
