"""`make foreign`: somebody else's tests, with every activity killed at its first attempt and replayed by the API.

The tests are those of https://github.com/temporalio/samples-python, cloned, or of the checkout that `REDRIVE_SAMPLES`
names; nothing of it is kept. They get an environment with what they need and what `pip install redrive` brings, and run
twice on an embedded stack: as they are, then with the plugin, the killer and an operator. By the console's API, the
operator replays every dead letter that the killer made, and discards the others. Arguments choose some tests
(`tests/hello`). Every test has to pass both times, but for `EXPECTED`. What pytest printed is in `build/foreign/`.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

import httpx

import run
from redrive.access import Role
from redrive.contracts import DEFAULT_TENANT
from redrive.postgres.database import ACCESS_ROLE, open_pool
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from redrive.starter.stack.state import StackInfo
from redrive.store.access import TokenRequest, create_token
from tests.conftest import owner_url

# Not as `tests.chaos`: the checkout has a package `tests` of its own.
HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
OUTPUT: Final = ROOT / "build" / "foreign"
SOURCE: Final = "https://github.com/temporalio/samples-python"
TEST_TIMEOUT: Final = 90
# Of no test, or of an older pytest than the rest can use.
NOT_TESTED: Final = {"dev", "bedrock", "cloud-export-to-parquet", "encryption", "external-storage", "gevent"}
RUNNERS: Final = ("pytest", "pytest-asyncio", "pytest-timeout", "fakeredis>=2,<3")
KILLED: Final = "Killed"
_MOVED: Final = "as it is: uses what SDK 1.35 has moved elsewhere"
_OWN_SERVER: Final = "as it is: downloads a server of its own, that skips time and has no Redrive"
_COUNTS_KEYS: Final = "counts the keys of its payload storage, where the plugin's reports are stored too"
_REDIS: Final = "tests/external_storage_redis/test_redis_worker.py::test_redis_"
_SENTRY: Final = "tests/sentry/test_interceptor.py::test_sentry_interceptor_"
# Every test that may fail, as it is or with its activities killed, by how its name begins.
EXPECTED: Final[dict[str, str]] = {
    "tests/google_adk_agents/tools_test.py": _MOVED,
    "tests/strands_plugin/": _MOVED,
    "tests/hello/hello_query_test.py": _OWN_SERVER,
    "tests/sleep_for_days/": _OWN_SERVER,
    "tests/updatable_timer/": _OWN_SERVER,
    "tests/hello/hello_standalone_activity_test.py": "as it is: skips itself on a development server",
    "tests/nexus_standalone_operations/": "as it is: wants standalone Nexus operations, which are off",
    "tests/polling/infrequent/": "as it is: skips itself where time is not skipped",
    "tests/trio_async/": "as it is: skips itself before Python 3.12",
    "tests/activity_sticky_queues/activity_sticky_worker_workflow_test.py::test_worker_runs": (
        "looks at every history of the namespace, where Redrive's own are too"
    ),
    f"{_SENTRY}captures_errors": "wants the failure: counts the events of one activity and of its workflow",
    f"{_SENTRY}reports_no_errors_when_workflow_succeeds": "wants no failure: the kill is an event of its own",
    f"{_REDIS}store_failure_surfaces_in_workflow_history": (
        "wants the failure of its payload storage within 5 seconds, and the report needs that storage"
    ),
    f"{_REDIS}driver_content_dedup": _COUNTS_KEYS,
    f"{_REDIS}driver_identifier_casing": _COUNTS_KEYS,
    f"{_REDIS}driver_workflow_activity_input_key": _COUNTS_KEYS,
    f"{_REDIS}driver_workflow_activity_output_key": _COUNTS_KEYS,
    f"{_REDIS}driver_workflow_input_key": _COUNTS_KEYS,
    f"{_REDIS}driver_workflow_output_key": _COUNTS_KEYS,
}


def main() -> int:
    """Have the checkout and an environment for it, and run."""
    with tempfile.TemporaryDirectory(prefix="redrive-foreign-", ignore_cleanup_errors=True) as directory:
        state = Path(directory)
        # PostgreSQL runs as another user.
        state.chmod(0o711)
        checkout = found_checkout(state)
        if checkout is None:
            return 2
        return asyncio.run(
            compare(checkout, environment(state / "environment", checkout), state, sys.argv[1:] or ["tests"])
        )


def found_checkout(state: Path) -> Path | None:
    """Return the checkout that `REDRIVE_SAMPLES` names, or a fresh one; None if there is neither."""
    named = os.environ.get("REDRIVE_SAMPLES")
    checkout = Path(named or state / "samples").resolve()
    if not named:
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", SOURCE, str(checkout)], check=False)
    if (checkout / "tests" / "conftest.py").is_file():
        return checkout
    what = f"REDRIVE_SAMPLES={named!r} is no checkout of {SOURCE}" if named else f"{SOURCE} cannot be had"
    print(f"{what}. With one:\n  REDRIVE_SAMPLES=/tmp/samples-python make foreign", file=sys.stderr)
    return None


def environment(directory: Path, checkout: Path) -> Path:
    """Make an environment with what the samples and the plugin need, and no more of ours; return its interpreter."""
    uv, settings = run.find_uv() or "uv", os.environ | run.uv_settings()
    own = directory / "bin" / "python"
    project = checkout / "pyproject.toml"
    groups = tomllib.loads(project.read_text())["dependency-groups"].keys() - NOT_TESTED
    chosen = [word for group in sorted(groups) for word in ("--group", f"{project}:{group}")]
    redrive = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(directory)], env=settings, check=True)
    install = [uv, "pip", "install", "--quiet", "--python", str(own), *chosen, *redrive, *RUNNERS]
    subprocess.run(install, env=settings, check=True)
    return own


async def compare(checkout: Path, python: Path, state: Path, chosen: list[str]) -> int:
    """Run the chosen tests twice, and print what differs."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    async with Stack(Settings(), state_dir=state, workers=1, console=True) as stack:
        tests = Tests(checkout, python, stack.info.temporal_address)
        before, _ = await tests.outcomes("before", chosen)
        if not before:
            print(f"no test was run of {' '.join(chosen)}: see {OUTPUT / 'before.txt'}", file=sys.stderr)
            return 2
        passing = sorted(name for name, problem in before.items() if problem is None)
        print(f"{len(passing)} of {len(before)} tests pass as they are; these are run again", flush=True)
        async with operator_client(stack.info) as client:
            operator = Operator(client)
            work = asyncio.create_task(operator.work())
            after, killed = await tests.outcomes("after", passing, kill=True)
            work.cancel()
    unexpected = report(before | after)
    done = sum(after.get(name, "was not run") is None for name in passing)
    print(
        f"{len(passing)} of {len(before)} tests pass as they are; with each of {killed} activities killed once, "
        f"{operator.decided['replay']} dead letters replayed and {operator.decided['discard']} discarded, "
        f"{done} of {len(passing)} pass; {unexpected} failed unexpectedly"
    )
    return 1 if unexpected or not killed or len(after) != len(passing) else 0


def report(outcomes: dict[str, str | None]) -> int:
    """Print each test that failed, with the reason, and return how many were not expected to."""
    unexpected = 0
    for name, problem in sorted(outcomes.items()):
        reasons = [reason for beginning, reason in EXPECTED.items() if name.startswith(beginning)]
        if problem:
            unexpected += not reasons
            print(f"  {name}: {reasons[0] if reasons else f'UNEXPECTED: {problem}'}")
    return unexpected


@contextlib.asynccontextmanager
async def operator_client(info: StackInfo) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of the console's API, of somebody who may give commands."""
    wanted = TokenRequest(
        name="ada",
        role=Role.ADMIN,
        tenant=DEFAULT_TENANT,
        created_by="the tests",
        person="member:ada",
        lasts=timedelta(hours=1),
    )
    async with await open_pool(owner_url(info), max_size=1, role=ACCESS_ROLE) as pool:
        token = (await create_token(pool, wanted)).secret
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"{info.console}/api/v1", headers=headers, timeout=30) as client:
        yield client


@dataclass(frozen=True)
class Tests:
    """The checkout's tests, in their environment, on a server."""

    checkout: Path
    python: Path
    address: str

    async def outcomes(self, name: str, chosen: list[str], *, kill: bool = False) -> tuple[dict[str, str | None], int]:
        """Run tests; return what is wrong with each, and how many activities were killed."""
        found: dict[str, str | None] = {}
        killed = 0
        with (OUTPUT / f"{name}.txt").open("wb") as out:
            # A test that does not end takes the process with it; the others are run by the next.
            while chosen:
                told = await self._told(OUTPUT / f"{name}.json", chosen, out, kill=kill)
                found |= told["tests"]
                killed += told["killed"]
                chosen = [test for test in told["collected"] if test not in found]
        return found, killed

    async def _told(self, results: Path, chosen: list[str], out: BinaryIO, *, kill: bool) -> dict[str, Any]:
        own = {
            "PYTHONPATH": os.pathsep.join(map(str, (self.checkout, HERE, ROOT))),
            "REDRIVE_OUTCOMES": str(results),
        }
        results.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *(str(self.python), *self._words(), *chosen),
            cwd=self.checkout,
            env=os.environ | own | ({"REDRIVE_KILL": "1"} if kill else {}),
            stdout=out,
            stderr=out,
        )
        await process.wait()
        told: dict[str, Any] = json.loads(results.read_text())
        return told

    def _words(self) -> list[str]:
        scopes = [f"asyncio_default_{what}_loop_scope=session" for what in ("fixture", "test")]
        options = [word for option in ("asyncio_mode=auto", *scopes) for word in ("-o", option)]
        return [
            *("-m", "pytest", "-v", "-p", "foreign_plugin", "-p", "no:cacheprovider", "-c", os.devnull),
            *("--rootdir", str(self.checkout), "--continue-on-collection-errors", f"--timeout={TEST_TIMEOUT}"),
            *(*options, "--workflow-environment", self.address),
        ]


class Operator:
    """Decides about every dead letter that comes. One whose worker is gone does not answer: no other waits for it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self.decided: Counter[str] = Counter()

    async def work(self) -> None:
        """Look for dead letters until it is canceled."""
        async with asyncio.TaskGroup() as group:
            while True:
                for letter in await self._pending():
                    task = self._under_way.get(letter["id"])
                    if task is None or task.done():
                        self._under_way[letter["id"]] = group.create_task(self._decide(letter))
                await asyncio.sleep(0.2)

    async def _pending(self) -> list[dict[str, str]]:
        try:
            listed = await self._client.get("/workflow-dlq", params={"status": "pending"})
        except httpx.TransportError:
            return []
        found: list[dict[str, str]] = listed.json().get("dead_letters", [])
        return found

    async def _decide(self, letter: dict[str, str]) -> None:
        """Replay what was killed; discard what has failed by itself, so that the workflow's own code has the error."""
        verb = "replay" if letter["error_type"] == KILLED else "discard"
        body = {"reason": "killed by the test", "request_id": uuid.uuid4().hex}
        try:
            answer = await self._client.post(f"/workflow-dlq/{letter['id']}/{verb}", json=body)
        except httpx.TransportError:
            # No answer in time: it is still pending, and asked again.
            return
        self.decided[verb] += answer.is_success
        if answer.is_error and answer.status_code not in {httpx.codes.CONFLICT, httpx.codes.SERVICE_UNAVAILABLE}:
            print(f"  {letter['module']}: {answer.text[:200]}")


if __name__ == "__main__":
    sys.exit(main())
