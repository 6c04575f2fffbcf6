"""The HTTP server of the SDK's tests, and clients of it."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import structlog
from pydantic import SecretStr
from structlog.testing import LogCapture

from redrive.http import ServiceClient
from tests.unit.redrive.conftest import Server, http, server

__all__ = ["http", "server"]

ClientFactory = Callable[..., ServiceClient]


@pytest.fixture
def logged() -> LogCapture:
    """What the clients of the test logged."""
    return LogCapture()


@pytest.fixture
def client(http: httpx.AsyncClient, server: Server, logged: LogCapture) -> ClientFactory:
    """Make a client of the server, as a step has it."""

    def make(**changes: Any) -> ServiceClient:
        log = structlog.wrap_logger(None, processors=[logged], wrapper_class=structlog.stdlib.BoundLogger)
        given: dict[str, Any] = {
            "base_url": server.url,
            "token": SecretStr("Zq-the-token"),
            "user_id": "user-7",
            "request_id": "req-1",
            "key_for": lambda operation: f"run-1:step:{operation}",
            "log": log,
        }
        return ServiceClient(http, **(given | changes))

    return make
