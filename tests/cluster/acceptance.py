"""The suite's tests of runs, dead letters, keys, bulk operations, bridges and the plugin, against the cluster.

The tests find the cluster as any user of an own server does: by TEMPORAL_ADDRESS and DATABASE_URL.
"""

import asyncio
import re
import sys
import tempfile
from asyncio.subprocess import STDOUT
from pathlib import Path

from tests.chaos.case import clock
from tests.cluster.cluster import Cluster
from tests.cluster.server_build import ROOT

SUITES = (
    *("runs", "dead_letters", "keys", "bulk", "events", "bridges", "outbox", "plugin", "schedules"),
    *("console/test_process.py", "console/test_commands.py"),
)
# They stop or kill servers of a stack that must be theirs, or ask which processes the stack has.
OWN_STACK = (
    "tests/integration/dead_letters/test_damaged_runs.py",
    "tests/integration/dead_letters/test_failures.py",
    "tests/integration/dead_letters/test_forged_commands.py",
    "tests/integration/dead_letters/test_state_machine.py",
    "tests/integration/bridges/test_up_with_brokers.py",
    "tests/integration/outbox/test_up_with_outbox.py",
)
# Most tests wait for the cluster most of the time: two files at a time.
_SIDE_BY_SIDE = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# On a machine full of servers, the replay of a history can block the loop of a test's own worker for long; the worker
# would end the test's process.
_PATIENT = {"REDRIVE_STALL_LIMIT": "PT5M"}
_OWN_POSTGRES = (
    "tests/integration/dead_letters/test_queues.py::test_without_a_database_each_report_waits_in_a_workflow_of_its_own"
)
_TAIL = 15


async def run_acceptance(cluster: Cluster, *paths: str) -> list[str]:
    """Run the tests, and return those that failed."""
    seconds = clock()
    chosen = paths or tuple(f"tests/integration/{suite}" for suite in SUITES)
    log = Path(tempfile.gettempdir()) / "redrive-cluster-acceptance.log"
    # Tests of the outbox make databases and logins of a team.
    await cluster.database.sql("ALTER ROLE redrive CREATEDB CREATEROLE")
    with log.open("w", encoding="utf-8") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", "-rfE", "-vv", "--tb=short", "-p", "no:cacheprovider"),
            *(*_SIDE_BY_SIDE, *chosen),
            *(word for path in OWN_STACK for word in ("--ignore", path)),
            *("--deselect", _OWN_POSTGRES),
            env=cluster.environment | cluster.logins | _PATIENT,
            cwd=ROOT,
            stdout=output,
            stderr=STDOUT,
        )
        await process.wait()
    text = log.read_text(encoding="utf-8")
    failed = re.findall(r"^((?:FAILED|ERROR) .*)$", text, re.MULTILINE)
    print(f"  {text.strip().splitlines()[-1]} ({seconds():.0f} s); {log}", flush=True)
    if process.returncode and not failed:
        return ["pytest ended with " + "\n".join([str(process.returncode), *text.splitlines()[-_TAIL:]])]
    return failed
