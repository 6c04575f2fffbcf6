"""A relay in front of a real server, which loses requests and answers as a test says."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from tests.unit.redrive.conftest import Received, reply

_OWN = frozenset({"host", "content-length", "connection", "accept-encoding"})


@dataclass
class Relay:
    """Set `before` to answer a request instead of the server, `after` to replace its answer: by a status, or None."""

    url: str
    http: httpx.AsyncClient
    before: Callable[[Received], int | None] = lambda _request: None
    after: Callable[[Received], int | None] = lambda _request: None

    @staticmethod
    def client() -> httpx.AsyncClient:
        """Return a client that may reach this machine."""
        return httpx.AsyncClient(trust_env=False, timeout=60)

    async def answer(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """Answer any request."""
        status = self.before(request)
        if status is None:
            found = await self.forward(request)
            status = self.after(request)
            if status is None:
                kind = {"content_type": found.headers.get("content-type", "")}
                await reply(found.status_code, found.content, **kind)(request, writer)
                return
        await reply(status)(request, writer)

    async def forward(self, request: Received) -> httpx.Response:
        """Send a request to the server."""
        headers = {name: value for name, value in request.headers.items() if name not in _OWN}
        return await self.http.request(
            request.method, f"{self.url}{request.target}", headers=headers, content=request.body
        )
