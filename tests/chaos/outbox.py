"""Kill what an outbox needs, one after another, under 10,000 rows: `python -m tests.chaos.outbox`.

Each is killed once while rows are written, and twice more while they are delivered, until few are left. Ends with 0
when every committed row was delivered by one run, and no row that was rolled back has one; with 1 and what is wrong
otherwise. A step that was interrupted may be executed again, in the same run: that is counted and shown.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import asyncpg

import redrive.outbox
from redrive.connection import connect_temporal
from redrive.contracts import Broker
from redrive.errors import StackError
from redrive.keys import run_id_for_key
from redrive.logs import configure_logging
from redrive.settings import Settings
from redrive.starter.stack.children import ChildState
from redrive.starter.stack.programs import worker_environment
from redrive.starter.stack.stack import Stack
from tests.chaos.case import clock
from tests.chaos.outbox_modules import FILE, PIPELINE
from tests.conftest import owner_url

TENANT = "chaos"
MODULES = "tests.chaos.outbox_modules"
CHILDREN = {"bridge": "bridge-outbox", "worker": "worker-1", "postgres": "postgres", "temporal": "temporal"}
# How often each is killed while rows are delivered, at even shares of them.
LATER = 2
# One transaction in so many is rolled back.
UNDONE = 10
BATCH = 50
# A loaded machine takes half an hour and more.
TIME_LIMIT = 3600.0


class OutboxCase:
    """Rows that are asked for, and what became of them."""

    def __init__(self, stack: Stack, file: Path) -> None:
        self._url = owner_url(stack.info)
        self._temporal = stack.info.temporal_address
        self._file = file
        self.asked = 0
        self.committed: set[int] = set()

    async def send(self, count: int) -> None:
        """Ask for so many more rows, in transactions of up to fifty; one in ten transactions is rolled back."""
        for start in range(self.asked, self.asked + count, BATCH):
            numbers = range(start, min(start + BATCH, self.asked + count))
            undo = (start // BATCH) % UNDONE == 0
            await _until(partial(self._sent, numbers, undo=undo))
            if not undo:
                self.committed |= set(numbers)
        self.asked += count

    async def _sent(self, numbers: range, *, undo: bool) -> bool:
        """Try one transaction. One whose commit was not answered is tried again: the keys are the same."""
        try:
            connection = await asyncpg.connect(self._url, timeout=5)
            try:
                transaction = connection.transaction()
                await transaction.start()
                for number in numbers:
                    await redrive.outbox.enqueue(
                        connection, PIPELINE, {"number": number}, key=f"row:{number}", tenant=TENANT
                    )
                await (transaction.rollback() if undo else transaction.commit())
            finally:
                connection.terminate()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    async def progress(self) -> str:
        """Say how many rows have which status, as far as PostgreSQL answers."""
        counts = await self._counts()
        return "PostgreSQL does not answer" if counts is None else f"{dict(sorted(counts.items()))}"

    async def until_delivered(self, share: float = 1.0) -> None:
        """Wait until this share of the committed rows is neither pending nor in flight."""
        await _until(partial(self._is_settled, share))

    async def _is_settled(self, share: float) -> bool:
        counts = await self._counts()
        waiting = ("pending", "in_flight")
        return counts is not None and sum(counts[status] for status in waiting) <= len(self.committed) * (1 - share)

    async def _counts(self) -> Counter[str] | None:
        """Count the rows by status, or return None if PostgreSQL does not answer."""
        try:
            found = await self._fetch("SELECT status, count(*) FROM redrive.outbox GROUP BY status")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return None
        return Counter({row["status"]: row["count"] for row in found})

    async def _fetch(self, query: str, *values: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._url, timeout=5)
        try:
            return await connection.fetch(query, *values)
        finally:
            connection.terminate()

    async def violations(self) -> tuple[list[str], int]:
        """Return what is wrong, and how many executions of steps were repeated."""
        rows = await self._fetch("SELECT key, status, run_id, last_error FROM redrive.outbox WHERE tenant = $1", TENANT)
        lines = [line.split() for line in self._file.read_text().splitlines()]
        runs: dict[int, set[str]] = defaultdict(set)
        for number, run_id in lines:
            runs[int(number)].add(run_id)
        wanted = {f"row:{number}" for number in self.committed}
        problems = [f"{key}: committed, and there is no row" for key in wanted - {row["key"] for row in rows}]
        problems += [f"{row['key']}: rolled back, and has a row" for row in rows if row["key"] not in wanted]
        problems += [
            f"{row['key']}: {row['status']} ({row['last_error']})" for row in rows if row["status"] != "delivered"
        ]
        problems += [f"row {number}: rolled back, and ran" for number in runs if number not in self.committed]
        problems += [f"row {number}: delivered, and never ran" for number in self.committed - set(runs)]
        problems += [
            f"row {number}: ran as {found}"
            for number, found in runs.items()
            if found != {run_id_for_key(TENANT, f"row:{number}")}
        ]
        problems += await self._started()
        repeated = sum(Counter(number for number, _ in lines).values()) - len(runs)
        return problems, repeated

    async def _started(self) -> list[str]:
        """Compare the number of runs in Temporal with that of the rows."""
        client = await connect_temporal(Settings(temporal_address=self._temporal))
        query = "WorkflowType = 'ModuleRun'"
        count = 0
        for _ in range(40):
            count = (await client.count_workflows(query)).count
            if count == len(self.committed):
                return []
            await asyncio.sleep(0.5)
        return [f"{count} runs in Temporal for {len(self.committed)} committed rows"]


async def _until(ask: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await ask():
            return
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def _told(case: OutboxCase, seconds: Callable[[], float]) -> AsyncIterator[None]:
    """Print from time to time how far it is: on a busy machine it takes long."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(15)
            print(f"{seconds():.0f} s: {await case.progress()}", flush=True)

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()


async def _hurt(stack: Stack, case: OutboxCase, kinds: Sequence[str], count: int, seconds: Callable[[], float]) -> None:
    """Write the rows and wait until they are delivered, with the kills in between."""

    async def kill(kind: str) -> None:
        print(f"{seconds():.0f} s: {kind} is killed: {await case.progress()}", flush=True)
        await _kill(stack, CHILDREN[kind])

    for kind in kinds:
        await case.send(max(count // (len(kinds) + 1), 1))
        await kill(kind)
    await case.send(max(count - case.asked, 0))
    later = [*kinds] * LATER
    for number, kind in enumerate(later):
        await case.until_delivered((number + 0.5) / len(later))
        await kill(kind)
    await case.until_delivered()


async def _kill(stack: Stack, name: str) -> None:
    """Kill a child that is up, by signal 9; the stack starts it again."""
    while (child := stack.children[name]).state is not ChildState.READY or child.pid is None:
        await stack.wait_changed()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def _second_bridge(stack: Stack, state: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a bridge beside the stack's own, which nobody kills: it has to outlive everything else."""
    environment = worker_environment(stack.info, state_dir=state, embedded_temporal=True)
    command = (sys.executable, "-m", "redrive.starter.cli.main", "bridge", "outbox")
    with (state / "second-bridge.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _all(words: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="redrive-chaos-", ignore_cleanup_errors=True) as directory:
        state = Path(directory)
        # PostgreSQL does not run as root: its account has to get through here.
        state.chmod(0o711)
        os.environ[FILE] = str(state / "runs.txt")
        Path(os.environ[FILE]).touch()
        kinds = words.only or list(CHILDREN)
        made = Stack(Settings(), state_dir=state / "state", modules=[MODULES], workers=2, brokers={Broker.OUTBOX: None})
        async with asyncio.timeout(words.limit), made as stack, _second_bridge(stack, state) as second:
            case, seconds = OutboxCase(stack, Path(os.environ[FILE])), clock()
            async with _told(case, seconds):
                await _hurt(stack, case, kinds, words.rows, seconds)
            problems, repeated = await case.violations()
            if second.returncode is not None:
                problems.append(f"the second bridge ended: {(state / 'second-bridge.log').read_text()[-500:]}")
            print(
                f"{', '.join(kinds)} killed {1 + LATER} times each: {case.asked} rows asked for, {len(case.committed)} "
                f"committed, in {seconds():.1f} s; {len(problems)} violations, {repeated} steps executed again",
                flush=True,
            )
            return problems


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.outbox", description=__doc__.partition(":")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--only", choices=sorted(CHILDREN), action="append", help="kill only this")
    parser.add_argument("--limit", type=float, default=TIME_LIMIT, help="give up after so many seconds")
    words = parser.parse_args()
    configure_logging("error")
    try:
        problems = asyncio.run(_all(words))
    except (StackError, TimeoutError) as error:
        problems = [f"not done: {type(error).__name__} {error}"]
    print("\n".join([*problems[:20], f"{len(problems)} violations" if problems else "no violation"]))
    sys.stdout.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is stopped by now.
    os._exit(1 if problems else 0)


if __name__ == "__main__":
    main()
