"""Connections to services: to public addresses only, unless a call allows private ones.

The address that is checked is the address that is connected to: DNS rebinding gains nothing. A proxy that the
environment names (HTTP_PROXY, NO_PROXY) resolves names itself, and is trusted.
"""

import asyncio
import functools
import socket
import ssl
from collections.abc import Iterable
from typing import Final
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from redrive.errors import Terminal
from redrive.urls import is_private

PRIVATE: Final = "redrive.private_addresses"
"""The extension of a request that may go to a private address."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """Send requests through one of two pools: a connection made for private calls serves no other."""

    def __init__(self, limits: httpx.Limits) -> None:
        context = certificates()
        self._open = httpx.AsyncHTTPTransport(verify=context, limits=limits)
        self._public = _PublicTransport(context, limits)
        self._proxies = {
            scheme: httpx.AsyncHTTPTransport(
                verify=context, limits=limits, proxy=url if "://" in url else f"http://{url}"
            )
            for scheme, url in getproxies().items()
            if scheme in {"http", "https", "all"}
        }

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, or raise Terminal if its host's address is not allowed."""
        return await self._transport(request).handle_async_request(request)

    def _transport(self, request: httpx.Request) -> httpx.AsyncBaseTransport:
        proxy = self._proxies.get(request.url.scheme) or self._proxies.get("all")
        if proxy is not None and not proxy_bypass(request.url.host):
            return proxy
        return self._open if request.extensions.get(PRIVATE) else self._public

    async def aclose(self) -> None:
        """Close all connections."""
        for transport in (self._open, self._public, *self._proxies.values()):
            await transport.aclose()


@functools.cache
def certificates() -> ssl.SSLContext:
    """Read whom to trust, once in a process: it takes longer than all else that a worker needs before it is ready."""
    return httpx.create_ssl_context()


class _PublicTransport(httpx.AsyncHTTPTransport):
    def __init__(self, context: ssl.SSLContext, limits: httpx.Limits) -> None:
        super().__init__(verify=context, limits=limits)
        # The only place where a connection's address is visible before it is made; httpx passes no backend on.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_PublicNetwork(),
        )


class _PublicNetwork(httpcore.AsyncNetworkBackend):
    """Resolve a name, and connect to one of its public addresses."""

    def __init__(self) -> None:
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception | None = None
        for address in await _public_addresses(host, port):
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError(f"{host} has no address")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _public_addresses(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error
    addresses = [str(address[0]) for *_, address in found]
    public = [address for address in addresses if not is_private(address)]
    if addresses and not public:
        raise Terminal(
            f"{host!r} leads to {addresses[0]}, a private address, which this call may not reach: name the service in "
            'REDRIVE_SERVICES with "private_addresses": true, or set REDRIVE_PRIVATE_ADDRESSES=true'
        )
    return public
