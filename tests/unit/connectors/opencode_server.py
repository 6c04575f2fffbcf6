"""The examples' OpenCode on the tests' HTTP server."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from redrive.examples.growth.services.opencode import PASSWORD, Found, OpenCode, api_error
from redrive.examples.site import Request
from tests.unit.redrive.conftest import Received, reply

__all__ = ["PASSWORD", "Found", "OpenCodeServer", "api_error"]


@dataclass
class OpenCodeServer(OpenCode):
    """Set `before` to answer something else first; `after` replaces an answer when its work has been done."""

    before: Callable[[Received], Found | None] = lambda _request: None
    after: Callable[[Received], Found | None] = lambda _request: None

    async def answer(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """Answer any request."""
        found = self.before(request)
        if found is None:
            found = self.respond(Request(**vars(request)))
            found = self.after(request) or found
        status, body = found
        await reply(status, body, content_type="application/json")(request, writer)
