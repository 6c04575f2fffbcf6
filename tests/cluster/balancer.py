"""A load balancer for TCP: `python -m tests.cluster.balancer LISTEN NODE...`; it asks each node whether it lives.

A node that does not answer loses its connections at once, as behind any real balancer: a client behind a cut link would
otherwise wait for its own keep-alive, most of a minute.
"""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Iterator

_CHECK_INTERVAL = 1.0
_TIMEOUT = 1.0
_PATIENCE = 2
_CHUNK = 2**16


class Node:
    """A node, whether it answers, and its connections."""

    def __init__(self, address: str) -> None:
        self.host, _, self.port = address.rpartition(":")
        self.misses = 0
        self.writers: set[asyncio.StreamWriter] = set()

    @property
    def answers(self) -> bool:
        """Whether it has answered lately."""
        return self.misses < _PATIENCE

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to it."""
        async with asyncio.timeout(_TIMEOUT):
            return await asyncio.open_connection(self.host, int(self.port))

    async def watch(self) -> None:
        """Ask it for ever whether it lives."""
        while True:
            try:
                _, writer = await self.connect()
                writer.close()
                self.misses = 0
            except (OSError, TimeoutError):
                self.misses += 1
            if not self.answers:
                for writer in list(self.writers):
                    writer.transport.abort()
            await asyncio.sleep(_CHECK_INTERVAL)


class Balancer:
    """Gives each connection to the next node that answers."""

    def __init__(self, addresses: list[str]) -> None:
        self.nodes = [Node(address) for address in addresses]
        self._turns: Iterator[Node] = itertools.cycle(self.nodes)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass everything on, in both directions, until either side ends."""
        for node in (next(self._turns) for _ in self.nodes):
            if node.answers:
                with contextlib.suppress(OSError, TimeoutError):
                    await self._relay(node, reader, writer, await node.connect())
                    break
        writer.close()

    async def _relay(
        self,
        node: Node,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        ends = {writer, upstream[1]}
        node.writers |= ends
        try:
            copies = [asyncio.create_task(_copy(reader, upstream[1])), asyncio.create_task(_copy(upstream[0], writer))]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for copy in copies:
                copy.cancel()
        finally:
            node.writers -= ends
            upstream[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()


async def serve(listen: str, addresses: list[str]) -> None:
    """Balance until the process ends."""
    balancer = Balancer(addresses)
    host, _, port = listen.rpartition(":")
    async with await asyncio.start_server(balancer.connected, host, int(port)) as server, asyncio.TaskGroup() as tasks:
        for node in balancer.nodes:
            tasks.create_task(node.watch())
        tasks.create_task(server.serve_forever())


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
