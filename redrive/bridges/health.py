"""A bridge's health and metrics over HTTP."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from redrive.errors import InvalidInput

_STARTING = "starting"


class Health:
    """The parts that a process needs, and their current problems."""

    def __init__(self, *parts: str) -> None:
        self._problems: dict[str, str | None] = dict.fromkeys(parts, _STARTING)
        self._been_well = asyncio.Event()

    def up(self, part: str) -> None:
        """Record that a part works."""
        self._problems[part] = None
        if self.well:
            self._been_well.set()

    def down(self, part: str, why: str) -> None:
        """Record that a part does not work."""
        self._problems[part] = why

    @property
    def parts(self) -> dict[str, str]:
        """Each part with `ok`, or what is wrong."""
        return {part: problem or "ok" for part, problem in self._problems.items()}

    @property
    def well(self) -> bool:
        """Tell whether every part works."""
        return not any(self._problems.values())

    async def been_well(self) -> None:
        """Wait until every part has worked at the same time, once."""
        await self._been_well.wait()


def health_app(service: str, health: Health, registry: CollectorRegistry) -> Starlette:
    """Answer `/health` with 200 or 503 and the parts, and `/metrics` for Prometheus."""

    async def show_health(_: Request) -> Response:
        body = {"service": service, "status": "ok" if health.well else "unavailable", "parts": health.parts}
        return JSONResponse(body, status_code=200 if health.well else 503)

    async def show_metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/health", show_health), Route("/metrics", show_metrics)])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The process handles SIGTERM: it has more to stop than this server.
        yield


def _listener(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address, family=family)


@contextlib.asynccontextmanager
async def serving(app: Starlette, host: str, port: int) -> AsyncIterator[int]:
    """Serve on HTTP_HOST and HTTP_PORT for the length of the block, and yield the port; 0 takes any."""
    try:
        listener = _listener(host, port)
    except OSError as error:
        raise InvalidInput(
            f"HTTP_HOST={host} HTTP_PORT={port}: cannot listen there ({error.strerror}); "
            "set an address of this machine and a free port"
        ) from None
    with listener:
        server = _Server(uvicorn.Config(app, log_config=None, log_level="warning", access_log=False, lifespan="off"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task
