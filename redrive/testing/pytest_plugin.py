"""Fixtures of the testing kit. Every pytest of an environment with Redrive loads this file: it costs nothing.

PYTEST_DONT_REWRITE
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from redrive.testing import Clock, FakeServices, Faults, Server


@pytest.fixture
def redrive_services() -> "FakeServices":
    """A recording fake of the services that modules call."""
    from redrive.testing.services import FakeServices  # noqa: PLC0415

    return FakeServices()


@pytest.fixture
def redrive_faults() -> "Faults":
    """Failures that the test plans."""
    from redrive.testing.faults import Faults  # noqa: PLC0415

    return Faults()


@pytest.fixture
def redrive_clock() -> "Clock":
    """The clock of a run in memory."""
    from redrive.testing.contexts import Clock  # noqa: PLC0415

    return Clock()


@pytest.fixture
def redrive_server(
    redrive_services: "FakeServices", redrive_faults: "Faults"
) -> "Callable[..., AbstractAsyncContextManager[Server]]":
    """A Temporal server with the test's services and faults: `async with redrive_server() as server`.

    Not an async fixture: those need a further plugin, and its event loop.
    """
    from redrive.testing.server import Server  # noqa: PLC0415

    def start(**options: Any) -> "AbstractAsyncContextManager[Server]":
        given: dict[str, Any] = {"services": redrive_services, "faults": redrive_faults} | options
        return Server.start(**given)

    return start
