"""For the pytest of a foreign project: its clients have the plugin, and every activity dies at its first attempt."""

import os
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from temporalio.worker._worker import load_default_build_id

from redrive.plugin import DeadLetters
from redrive.plugin.reports import NAMES


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
        place = info.workflow_run_id, info.activity_id
        # An activity without a workflow has nowhere to park.
        if info.workflow_id and info.activity_type not in NAMES and place not in self._killed:
            self._killed.add(place)
            raise ApplicationError("killed at its first attempt", type="Killed", non_retryable=True)
        return await self.next.execute_activity(input)


KILLER = Killer()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give every client that connects the plugin, which its workers inherit."""
    if "REDRIVE_KILL" not in os.environ:
        return
    # A worker's default build id is a hash over all loaded code: seconds, which no test's timeout should pay.
    load_default_build_id()
    plugins = [DeadLetters(["*"]), SimplePlugin("killer", interceptors=[KILLER])]
    connect = Client.connect

    async def connected(*arguments: Any, **options: Any) -> Client:
        return await connect(*arguments, **options | {"plugins": [*options.get("plugins", []), *plugins]})

    Client.connect = connected  # type: ignore[method-assign]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell how many died."""
    terminalreporter.write_line(f"killed: {len(KILLER.killed)}")
