"""Redrive's worker, and projects that use the plugin."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import Client

from redrive.plugin import DeadLetters
from redrive.starter.stack.state import StackInfo
from tests.conftest import WorkerFactory, owner_url
from tests.integration.plugin.lab import Project, running

ProjectFactory = Callable[..., Awaitable[Project]]


@pytest.fixture
async def new_project(stack: StackInfo, worker: WorkerFactory) -> AsyncIterator[ProjectFactory]:
    """Make projects whose dead letters Redrive's own worker keeps: `await new_project(tenant="acme")`."""
    async with worker() as own:

        async def make(*, connect: dict[str, Any] | None = None, **options: Any) -> Project:
            plugin = DeadLetters(**{"workflows": ["*"], "task_queue": own.settings.task_queue} | options)
            client = await Client.connect(stack.temporal_address, plugins=[plugin], **connect or {})
            return Project(client, own.redrive, owner_url(stack), plugin)

        yield make


@pytest.fixture
async def users(new_project: ProjectFactory) -> AsyncIterator[Project]:
    """A running project with the plugin."""
    async with running(await new_project()) as project:
        yield project
