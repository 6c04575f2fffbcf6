"""Checks before the routes: authentication, sizes, content types and JSON, once, for every request with a body.

An unknown caller's body is not read: authentication comes first, except for the short forms of signing in and out. What
passes is JSON that every store can hold: no NUL, no lone surrogate, no NaN, not too deep, not too large.
"""

import asyncio
from typing import Final

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redrive.console.authentication import principal, signed_in_owner
from redrive.console.headers import WEB_UI_PATH
from redrive.console.problems import Place, Refusal
from redrive.console.web.routes import KNOWN, answer_refusal
from redrive.contracts import MESSAGE_ELEMENT_LIMIT, MIB
from redrive.documents import first_problem, parse_json
from redrive.errors import TooLarge

BODY_LIMIT: Final = MIB + 64 * 1024
FORM_LIMIT: Final = 16 * 1024
API: Final = "/api/"
# The only paths to which anybody may send a body.
FOR_STRANGERS: Final = frozenset({"/sign-in", "/sign-out"})
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_JSON: Final = "application/json"
# A longer body is checked in a thread: other requests must not wait for it.
_CHECKED_AT_ONCE: Final = 32 * 1024


class BodyGuard:
    """Read the body of a request, refuse what no route could accept, and pass the rest on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            body = await _admitted(request, receive)
        except KNOWN as error:
            answer = await answer_refusal(request, error)
            await answer(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)


async def _admitted(request: Request, receive: Receive) -> bytes | None:
    """Return the body of a request that may pass, or None if the client disconnected."""
    if request.scope["path"] in FOR_STRANGERS:
        return await _read(request.headers, receive, FORM_LIMIT)
    is_web_ui = request.scope["path"].startswith(f"{WEB_UI_PATH}/")
    await (signed_in_owner if is_web_ui else principal)(request)
    body = await _read(request.headers, receive, BODY_LIMIT)
    if body and request.scope["path"].startswith(API):
        _check_kind(request.headers)
        if len(body) > _CHECKED_AT_ONCE:
            await asyncio.to_thread(_check, body)
        else:
            _check(body)
    return body


async def _read(headers: Headers, receive: Receive, limit: int) -> bytes | None:
    """Return the body, or None if the client disconnected."""
    stated = headers.get("content-length", "0")
    if stated.isdecimal() and (len(stated) > 18 or int(stated) > limit):
        raise _too_large(f"{stated[:18]} bytes", limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(f"more than {limit} bytes", limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(what: str, limit: int) -> Refusal:
    return Refusal(
        413, "too_large", f"the body has {what}; the limit is {limit}", "send less, or a reference to the data"
    )


def _check_kind(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        raise Refusal(
            415,
            "unsupported_media_type",
            f"header.Content-Type: {kind[:80]!r} is not read here",
            f"send JSON with Content-Type: {_JSON}",
            places=[Place(place="header.Content-Type", problem=f"only {_JSON} is read")],
        )


def _check(body: bytes) -> None:
    try:
        value = parse_json(body, MESSAGE_ELEMENT_LIMIT)
    except TooLarge as error:
        raise Refusal(413, "too_large", f"the body has {error}", "send less, or a reference to the data") from None
    except ValueError as error:
        raise _malformed("body", f"not valid JSON: {error}") from None
    problem = first_problem(value, MESSAGE_ELEMENT_LIMIT)
    if problem:
        raise _malformed(f"body{problem.place}", problem.sentence)


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
