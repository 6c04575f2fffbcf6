"""For the pytest of a foreign project: its clients have the plugin, and every activity dies at its first attempt."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from temporalio.worker._worker import load_default_build_id

from redrive.plugin import DeadLetters
from redrive.plugin.reports import NAMES

TIMED_OUT: Final = "Failed: Timeout"


class Killer(Interceptor):
    """Kills each activity of a workflow once, for good."""

    def __init__(self) -> None:
        self.killed: set[tuple[str | None, str]] = set()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        """Return the interceptor of one activity task."""
        return _Killing(super().intercept_activity(next), self.killed)


class _Killing(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, killed: set[tuple[str | None, str]]) -> None:
        super().__init__(following)
        self._killed = killed

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's name
        info = activity.info()
        # A local activity that is replayed has another id.
        place = info.workflow_run_id, info.activity_type if info.is_local else info.activity_id
        # An activity without a workflow has nowhere to park.
        if info.workflow_id and info.activity_type not in NAMES and place not in self._killed:
            self._killed.add(place)
            raise ApplicationError("killed at its first attempt", type="Killed", non_retryable=True)
        return await self.next.execute_activity(input)


KILLER = Killer()
COLLECTED: list[str] = []
OUTCOMES: dict[str, str | None] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give every client that connects the plugin, which its workers inherit."""
    # A worker's default build id is a hash over all loaded code: seconds, which no test's timeout should pay.
    load_default_build_id()
    if "REDRIVE_KILL" not in os.environ:
        return
    plugins = [DeadLetters(["*"]), SimplePlugin("killer", interceptors=[KILLER])]
    connect = Client.connect

    async def connected(*arguments: Any, **options: Any) -> Client:
        return await connect(*arguments, **options | {"plugins": [*options.get("plugins", []), *plugins]})

    Client.connect = connected  # type: ignore[method-assign]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which tests there are."""
    COLLECTED.extend(item.nodeid for item in session.items)
    _write()


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note the test that runs now: it may end the process."""
    OUTCOMES[nodeid] = "it ended the process"
    _write()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what is wrong with a test; None: nothing so far."""
    told = _problem(report)
    if told or report.when == "call":
        OUTCOMES[report.nodeid] = told
    _write()
    if told and told.startswith(TIMED_OUT):
        # Its worker still runs: it would take the end of the session with it.
        os._exit(1)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be read."""
    if told := _problem(report):
        OUTCOMES[report.nodeid] = told


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Leave at once: exporters of traces, and Temporal's native threads, can hold up the interpreter's exit."""
    sys.stdout.flush()
    os._exit(0)


def _write() -> None:
    written = {"collected": COLLECTED, "tests": OUTCOMES, "killed": len(KILLER.killed)}
    Path(os.environ["REDRIVE_OUTCOMES"]).write_text(json.dumps(written))


def _problem(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    if report.passed:
        return None
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2][:300]
    lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
    return " ".join((lines or ["E no reason is given"])[-1].split())[2:300]
