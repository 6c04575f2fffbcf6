"""Temporal's Web UI behind the console's sign-in, for owners: it shows all tenants, and has no sign-in of its own.

The Web UI is configured for the same path (`--ui-public-path /temporal`). Its pages run its own scripts, under their
own policy: they may load and request nothing of the console outside this path.
"""

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from typing import Final

import httpx
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from redrive.console.headers import WEB_UI_PATH
from redrive.console.problems import Refusal
from redrive.errors import InvalidInput

# The limit of a page; its assets are streamed, whatever their size.
_PAGE_LIMIT: Final = 4 * 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(10.0, read=75.0)
_CSRF_COOKIE: Final = "_csrf"
# Headers of a single connection, our own, and those that would make the Web UI doubt its page's origin.
_NOT_SENT: Final = frozenset(
    (
        *("host", "cookie", "authorization", "origin", "referer", "content-length", "connection", "keep-alive", "te"),
        *("transfer-encoding", "upgrade", "trailer", "proxy-authorization", "forwarded", "x-real-ip"),
    )
)
_PASSED_ON: Final = (
    *("content-type", "content-encoding", "content-length", "content-disposition", "cache-control", "etag"),
    *("last-modified", "location"),
)
_INLINE: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


class WebUi:
    """The Web UI as this process reaches it."""

    def __init__(self, address: str) -> None:
        self._base = _checked(address)
        self._http = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, follow_redirects=False)

    async def show(self, request: Request, origin: str) -> Response:
        """Answer a browser that sees the console at this origin: a page as a whole, assets as a stream."""
        answer = await self._ask(request, await request.body())
        headers = _passed_on(answer)
        if answer.headers.get("content-type", "").startswith("text/html"):
            return await _page(answer, headers, origin)
        return StreamingResponse(_streamed(answer), answer.status_code, headers=headers)

    async def _ask(self, request: Request, body: bytes) -> httpx.Response:
        path: bytes = request.scope["raw_path"]
        query: bytes = request.scope["query_string"]
        asked = self._http.build_request(
            request.method,
            self._base.copy_with(raw_path=path + (b"?" + query if query else b"")),
            headers=_sent(request),
            content=body or None,
        )
        try:
            return await self._http.send(asked, stream=True)
        except httpx.TransportError as error:
            raise Refusal(
                503,
                "unavailable",
                f"the Temporal Web UI does not answer: {type(error).__name__}",
                "see that it runs, and that REDRIVE_WEB_UI_PROXY is its address",
            ) from None

    async def close(self) -> None:
        """Close the connections to it."""
        await self._http.aclose()


async def _streamed(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Stream an answer; a browser that disconnects ends it."""
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


async def _page(answer: httpx.Response, headers: dict[str, str], origin: str) -> Response:
    """Return a page with a policy that lets its own inline script run, and no other."""
    page = b""
    try:
        async for chunk in answer.aiter_bytes():
            page += chunk
            if len(page) > _PAGE_LIMIT:
                raise Refusal(502, "too_large", f"the Web UI's page has over {_PAGE_LIMIT} bytes", "open it directly")
    finally:
        await answer.aclose()
    kept = {name: value for name, value in headers.items() if name not in {"content-encoding", "content-length"}}
    return Response(page, answer.status_code, headers=kept | {"content-security-policy": policy(page, origin)})


def policy(page: bytes, origin: str) -> str:
    """Return the content security policy of a Web UI page: only inline scripts with known hashes are allowed."""
    own = f"{origin}{WEB_UI_PATH}/"
    hashes = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _INLINE.findall(page))
    return "; ".join(
        (
            "default-src 'none'",
            " ".join(("script-src", own, *(f"'sha256-{each}'" for each in hashes))),
            # Its components write styles into the page.
            f"style-src {own} 'unsafe-inline'",
            f"img-src {own} data: blob:",
            f"font-src {own} data:",
            f"connect-src {own}",
            f"worker-src {own} blob:",
            f"manifest-src {own}",
            f"form-action {own}",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


def _checked(address: str) -> httpx.URL:
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.path not in {"", "/"}:
        raise InvalidInput(f"REDRIVE_WEB_UI_PROXY={address!r}: must read like http://127.0.0.1:8233, without a path")
    return url


def _sent(request: Request) -> dict[str, str]:
    kept = {
        name: value
        for name, value in request.headers.items()
        if name not in _NOT_SENT and not name.startswith(("x-forwarded-", "sec-"))
    }
    word = request.cookies.get(_CSRF_COOKIE)
    return kept | ({"cookie": f"{_CSRF_COOKIE}={word}"} if word else {})


def _passed_on(answer: httpx.Response) -> dict[str, str]:
    headers = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
    if not headers.get("location", "/").startswith(f"{WEB_UI_PATH}/"):
        headers.pop("location", None)
    return headers | _its_cookie(answer.headers)


def _its_cookie(headers: httpx.Headers) -> dict[str, str]:
    """Return the cookie of the Web UI's own CSRF check, and no other: it must not set ours."""
    own = [each for each in headers.get_list("set-cookie") if each.startswith(f"{_CSRF_COOKIE}=")]
    return {"set-cookie": own[0].replace("Path=/;", f"Path={WEB_UI_PATH};")} if own else {}
