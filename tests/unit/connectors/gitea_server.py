"""The examples' Gitea on the tests' HTTP server."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from redrive.examples.growth.services.gitea import TOKEN, Found, Gitea
from redrive.examples.site import Request
from tests.unit.redrive.conftest import Received, reply

__all__ = ["TOKEN", "Found", "GiteaServer"]


@dataclass
class GiteaServer(Gitea):
    """Set `before` to answer something else first."""

    before: Callable[[Received], Found | None] = lambda _request: None

    async def answer(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """Answer any request."""
        status, body = self.before(request) or self.respond(Request(**vars(request)))
        await reply(status, body, content_type="application/json;charset=utf-8")(request, writer)
