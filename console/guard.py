"""The gate before the routes: sizes, content types and JSON are checked here, once, for every request with a body.

What passes is JSON that every store can hold: no NUL, no lone surrogate, no NaN, not too deep, not too large.
"""

from typing import Final

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from console.problems import Place, Refusal, respond
from redrive.contracts import MIB
from redrive.documents import json_problem

BODY_LIMIT: Final = MIB + 64 * 1024
API: Final = "/api/"
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_JSON: Final = "application/json"


class BodyGuard:
    """Read the body of a request, refuse what no route could take, and hand the rest on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        try:
            body = await _read(Headers(scope=scope), receive)
            if body is not None and scope["path"].startswith(API):
                _check(Headers(scope=scope), body)
        except Refusal as refusal:
            await respond(refusal)(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)


async def _read(headers: Headers, receive: Receive) -> bytes | None:
    """Return the body, or None when the client went away before its end."""
    stated = headers.get("content-length", "0")
    if stated.isdigit() and int(stated) > BODY_LIMIT:
        raise _too_large(f"{stated} bytes")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > BODY_LIMIT:
            raise _too_large(f"more than {BODY_LIMIT} bytes")
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(what: str) -> Refusal:
    return Refusal(
        413, "too_large", f"the body has {what}; the limit is {BODY_LIMIT}", "send less, or a reference to the data"
    )


def _check(headers: Headers, body: bytes) -> None:
    if not body:
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        raise Refusal(
            415,
            "unsupported_media_type",
            f"header.Content-Type: {kind[:80]!r} is not read here",
            f"send JSON with Content-Type: {_JSON}",
            places=[Place(place="header.Content-Type", problem=f"only {_JSON} is read")],
        )
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise _malformed("body", f"not valid JSON: {error}") from None
    problem = json_problem(value)
    if problem:
        place, _, what = problem.partition(": ")
        raise _malformed(f"body{place}".encode("utf-8", "replace").decode(), what)


def _malformed(place: str, what: str) -> Refusal:
    places = [Place(place=place, problem=what)]
    return Refusal(400, "malformed_json", f"{place}: {what}", "send one valid JSON document", places=places)


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
