"""A small flaky shop: a real HTTP service whose answers depend on the item ordered.

| item   | what happens                                             |
|--------|----------------------------------------------------------|
| lamp   | works                                                    |
| kettle | the charge answers 503 twice, then works                 |
| violin | the charge answers 429 with `Retry-After: 1`, then works |
| piano  | the shipment hangs once, then works                      |
| ghost  | the reservation answers 400: no retry fixes that         |

It stores answers by `idempotency-key`, so that a repeated call has no second effect, and each run's reservations.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

HANG_SECONDS = 30


@dataclass(frozen=True)
class Answer:
    """The shop's answer."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    after: float = 0


class Shop:
    """Answer requests; count them by key and by path."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()
        self._done: dict[str, Answer] = {}
        self._items: dict[str, str] = {}

    def answer(self, path: str, key: str, body: dict[str, Any]) -> Answer:
        """Answer one request."""
        self.calls[path] += 1
        self._tries[key] += 1
        run = key.partition(":")[0]
        if path == "/reserve":
            self._items[run] = str(body.get("item", ""))
        if key in self._done:
            return self._done[key]
        trouble = _trouble(path, self._items.get(run, ""), self._tries[key])
        if trouble:
            return trouble
        self._done[key] = Answer(200, _result(path, key))
        return self._done[key]


def _trouble(path: str, item: str, tries: int) -> Answer | None:
    match path, item:
        case "/charge", "kettle" if tries <= 2:
            return Answer(503, {"error": "the card terminal is restarting"})
        case "/charge", "violin" if tries == 1:
            return Answer(429, {"error": "too many charges"}, {"Retry-After": "1"})
        case "/ship", "piano" if tries == 1:
            return Answer(200, {}, after=HANG_SECONDS)
        case "/reserve", "ghost":
            return Answer(400, {"error": "there is no item called 'ghost'"})
    return None


def _result(path: str, key: str) -> dict[str, Any]:
    number = key.partition(":")[0][-8:]
    match path:
        case "/reserve":
            return {"reservation_id": f"res-{number}", "price_cents": 1999}
        case "/charge":
            return {"charge_id": f"chg-{number}"}
        case _:
            return {"tracking_id": f"trk-{number}"}


@contextlib.asynccontextmanager
async def serve_shop(shop: Shop) -> AsyncIterator[str]:
    """Serve the shop on a free port of this machine and yield its address."""
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task:
            connections.add(task)
            task.add_done_callback(connections.discard)
        # Also a cancellation: asyncio's streams log a canceled connection as an error.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await _converse(shop, reader, writer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _converse(shop: Shop, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    path = request.split(" ")[1]
    answer = shop.answer(path, headers.get("idempotency-key", ""), json.loads(body or b"{}"))
    await asyncio.sleep(answer.after)
    writer.write(_encoded(answer))
    await writer.drain()


def _encoded(answer: Answer) -> bytes:
    content = json.dumps(answer.body).encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Connection": "close",
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content
