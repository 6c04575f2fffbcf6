"""A small HTTP server that keeps what it is sent and answers as it is told."""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Received:
    """One request."""

    headers: dict[str, str]
    body: bytes


@dataclass
class Sink:
    """Listen while the block lasts. `status` and `answer` go to every caller."""

    status: int = 204
    answer: str = ""
    received: list[Received] = field(default_factory=list)
    url: str = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = [line.partition(":") for line in head.split("\r\n")[1:] if line]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.received.append(Received(headers, body))
        content = self.answer.encode()
        head_out = f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
        writer.write(head_out.encode() + (b"" if self.status == 204 else content))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
