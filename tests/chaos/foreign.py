"""`make foreign`: somebody else's tests, with every activity killed at its first attempt and replayed by the API.

`REDRIVE_SAMPLES` names a checkout of https://github.com/temporalio/samples-python, of which nothing is kept. Its tests
run twice on an embedded stack: as they are, then with the plugin, the killer and an operator who replays every dead
letter by the console's API. Arguments choose some of them (`tests/hello`). What passed before must pass again, but for
the tests that want the failure.
"""

import asyncio
import contextlib
import os
import re
import sys
import tempfile
import uuid
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import httpx

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
SOURCE: Final = "https://github.com/temporalio/samples-python"
TEST_TIMEOUT: Final = 60
# The error that they wait for parks their workflow, and the operator's replays meet it again.
WANT_THE_FAILURE: Final[dict[str, str]] = {
    "tests/activity_sticky_queues/activity_sticky_worker_workflow_test.py::test_processing_fails_gracefully": (
        "wants its workflow to fail with its activity"
    ),
    "tests/sentry/test_interceptor.py::test_sentry_interceptor_captures_errors": (
        "wants the events of a failed activity and of its failed workflow"
    ),
}


def main() -> int:
    """Find the checkout and run."""
    checkout = Path(os.environ.get("REDRIVE_SAMPLES", ""))
    if not (checkout / "tests" / "conftest.py").is_file():
        print(
            f"REDRIVE_SAMPLES={os.environ.get('REDRIVE_SAMPLES')!r} is no checkout of {SOURCE}.\n"
            f"  git clone --depth 1 {SOURCE} /tmp/samples-python\n"
            "  REDRIVE_SAMPLES=/tmp/samples-python make foreign",
            file=sys.stderr,
        )
        return 2
    return asyncio.run(compare(checkout.resolve(), sys.argv[1:] or ["tests"]))


async def compare(checkout: Path, chosen: list[str]) -> int:
    """Run the chosen tests twice and print what differs."""
    with tempfile.TemporaryDirectory(prefix="redrive-foreign-", ignore_cleanup_errors=True) as directory:
        state = Path(directory)
        state.chmod(0o711)
        async with Stack(Settings(), state_dir=state, workers=1, console=True) as stack:
            address = stack.info.temporal_address
            before, _ = await outcomes(checkout, address, state / "before.xml", chosen)
            passing = sorted(name for name, passed in before.items() if passed)
            print(f"without: {len(passing)} of {len(before)} pass here; these are run again")
            async with operator_client(stack.info) as client:
                operator = asyncio.create_task(replay_all(client))
                after, killed = await outcomes(checkout, address, state / "after.xml", passing, kill=True)
                operator.cancel()
                pending = await client.get("/workflow-dlq", params={"status": "pending"})
    return report(passing, after, killed, len(pending.json()["dead_letters"]))


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


def report(passing: list[str], after: dict[str, bool], killed: int, pending: int) -> int:
    """Print the outcome and return the exit code."""
    failed = [name for name in passing if not after.get(name)]
    unexpected = [name for name in failed if name.split("[")[0] not in WANT_THE_FAILURE]
    for name in failed:
        print(f"  {name}: {WANT_THE_FAILURE.get(name.split('[')[0], 'UNEXPECTED')}")
    print(f"with each of {killed} activities killed once: {len(passing) - len(failed)} of {len(passing)} pass")
    print(f"dead letters left pending: {pending}")
    return 1 if unexpected or not killed else 0


async def outcomes(
    checkout: Path, address: str, results: Path, names: list[str], *, kill: bool = False
) -> tuple[dict[str, bool], int]:
    """Run the checkout's tests on a server; return which passed, and how many activities were killed."""
    scopes = [f"asyncio_default_{what}_loop_scope=session" for what in ("fixture", "test")]
    options = [word for option in ("asyncio_mode=auto", *scopes) for word in ("-o", option)]
    command = [
        *("-m", "pytest", "-v", "-p", "foreign_plugin", "-p", "no:cacheprovider", "-c", os.devnull),
        *("--rootdir", str(checkout), "--continue-on-collection-errors", f"--timeout={TEST_TIMEOUT}", *options),
        *(f"--junitxml={results}", "--workflow-environment", address),
    ]
    environment = os.environ | {"PYTHONPATH": f"{checkout}{os.pathsep}{HERE}"} | ({"REDRIVE_KILL": "1"} if kill else {})
    told = results.with_suffix(".txt")
    with told.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, *names, cwd=checkout, env=environment, stdout=out, stderr=out
        )
        await process.wait()
    killed = re.search(r"killed: (\d+)", told.read_text())
    return read(results), int(killed[1]) if killed else 0


def read(results: Path) -> dict[str, bool]:
    """Return the outcome of each test by its name on pytest's command line; those that were skipped are left out."""
    found: dict[str, bool] = {}
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        problems = {child.tag for child in case} & {"failure", "error", "skipped"}
        if "skipped" not in problems and case.get("classname"):
            file = case.get("classname", "").replace(".", "/")
            found[f"{file}.py::{case.get('name')}"] = not problems
    return found


async def replay_all(client: httpx.AsyncClient) -> None:
    """Replay every dead letter that comes."""
    while True:
        listed = await client.get("/workflow-dlq", params={"status": "pending"})
        for letter in listed.json().get("dead_letters", []):
            body = {"reason": "killed by the test", "request_id": uuid.uuid4().hex}
            answer = await client.post(f"/workflow-dlq/{letter['id']}/replay", json=body)
            if answer.is_error and answer.status_code != httpx.codes.CONFLICT:
                print(f"  {letter['module']}: {answer.text[:200]}")
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
