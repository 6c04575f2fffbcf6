"""Kill what the retry scheduler needs, one after another, under 10,000 messages: `python -m tests.chaos.rabbitmq`.

Ends with 0 when every message came back or was given up with a record, and nothing is left; with 1 and what is wrong
otherwise. Duplicates are allowed (at least once, with the same message id), counted and shown.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from redrive.connection import connect_temporal
from redrive.errors import StackError
from redrive.logs import configure_logging
from redrive.settings import Settings
from redrive.starter.stack.children import ChildState
from redrive.starter.stack.programs import worker_environment
from redrive.starter.stack.stack import Stack
from tests.bench.contenders import with_bytecode
from tests.chaos.case import clock
from tests.chaos.retry_case import RetryCase, shown
from tests.chaos.retry_scene import Bridges, bridge_environment, bridges
from tests.conftest import owner_url
from tests.integration.bridges.rabbit import RabbitServer, rabbitmq_server
from tests.integration.dead_letters.processes import stopped

TIME_LIMIT = 240.0
HURTS = 3
STOP_TIME = 4.0

Hurt = Callable[[Stack, RabbitServer, Bridges], Awaitable[None]]


async def _kill_bridge(_: Stack, __: RabbitServer, running: Bridges) -> None:
    await running.kill_other()


async def _kill_worker(_: Stack, __: RabbitServer, running: Bridges) -> None:
    await running.kill_sweeping()


async def _restart_rabbitmq(_: Stack, rabbitmq: RabbitServer, __: Bridges) -> None:
    await rabbitmq.restart()


async def _hurt_postgres(stack: Stack, _: RabbitServer, __: Bridges) -> None:
    await _hurt_child(stack, "postgres")


async def _hurt_temporal(stack: Stack, _: RabbitServer, __: Bridges) -> None:
    await _hurt_child(stack, "temporal")


async def _hurt_child(stack: Stack, name: str) -> None:
    """Let a server that is up answer nobody for a while, then kill it; the stack starts it again."""
    while (child := stack.children[name]).state is not ChildState.READY or child.pid is None:
        await stack.wait_changed()
    with stopped(child.pid):
        await asyncio.sleep(STOP_TIME)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)


TROUBLES: dict[str, Hurt] = {
    "bridge": _kill_bridge,
    "worker": _kill_worker,
    "rabbitmq": _restart_rabbitmq,
    "postgres": _hurt_postgres,
    "temporal": _hurt_temporal,
}


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.rabbitmq", description=__doc__.partition(":")[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--bridges", type=int, default=2)
    parser.add_argument("--only", choices=sorted(TROUBLES), action="append", help="hurt only this")
    parser.add_argument("--limit", type=float, default=TIME_LIMIT, help="give up on one kind after so many seconds")
    words = parser.parse_args()
    configure_logging("error")
    for chatty in ("aiormq", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    try:
        problems = asyncio.run(_all(words))
    except (StackError, TimeoutError) as error:
        problems = [f"not done: {type(error).__name__} {error}"]
    print("\n".join([*shown(problems), f"{len(problems)} violations" if problems else "no violation"]))
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(1 if problems else 0)


async def _all(words: argparse.Namespace) -> list[str]:
    problems = []
    async with _servers() as (state, stack, rabbitmq):
        for kind in words.only or TROUBLES:
            async with asyncio.timeout(words.limit):
                problems += await _one(kind, words, state, stack, rabbitmq)
    return problems


@contextlib.asynccontextmanager
async def _servers() -> AsyncIterator[tuple[Path, Stack, RabbitServer]]:
    with tempfile.TemporaryDirectory(prefix="redrive-chaos-", ignore_cleanup_errors=True) as directory:
        # PostgreSQL does not run as root: its account has to get through here.
        state = Path(directory)
        state.chmod(0o711)
        async with Stack(Settings(), state_dir=state, workers=0) as stack, rabbitmq_server(state) as rabbitmq:
            yield state, stack, rabbitmq


async def _one(kind: str, words: argparse.Namespace, state: Path, stack: Stack, rabbitmq: RabbitServer) -> list[str]:
    case = RetryCase(
        rabbitmq.url,
        owner_url(stack.info),
        tenant=kind,
        retry_queue=f"retry.{kind}",
        review_queue=f"review.{kind}",
        work_queue=f"work.{kind}",
    )
    await case.make_queues()
    environment = bridge_environment(
        with_bytecode(worker_environment(stack.info, state_dir=state, embedded_temporal=True), state),
        url=rabbitmq.url,
        retry_queue=case.retry_queue,
        review_queue=case.review_queue,
    )
    client = await connect_temporal(Settings(temporal_address=stack.info.temporal_address))
    folder = state / f"bridges-{kind}"
    folder.mkdir()
    async with bridges(words.bridges, environment, kind, folder, client) as running, case.receiving():
        seconds = clock()
        for _ in range(HURTS):
            await case.send(words.messages // (HURTS + 1))
            await TROUBLES[kind](stack, rabbitmq, running)
        await case.send(words.messages - len(case.sent))
        await case.until_all_came()
        await case.until_nothing_waits()
        problems = await case.violations()
        print(
            f"{kind} hurt {HURTS} times: {len(case.sent)} messages in {seconds():.1f} s, "
            f"{len(problems)} lost or stuck, {case.duplicates} duplicates, "
            f"{case.sent_again} sent again by their sender",
            flush=True,
        )
    return [f"{kind}: {problem}" for problem in problems]


if __name__ == "__main__":
    main()
