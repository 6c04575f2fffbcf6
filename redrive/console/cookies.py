"""The console's cookies: for the server only, and over HTTPS under names that nobody else can set.

A browser accepts a cookie whose name begins with `__Host-` only over HTTPS, from this host and for all its paths: no
sibling domain and nobody on the network can plant one. A console on plain HTTP, as on a developer's machine, would get
none back: there the cookies have plain names.
"""

from typing import Final

from fastapi import Request, Response

from redrive.console.app_state import AppState

SESSION: Final = "redrive_session"
FLOW: Final = "redrive_flow"
_HOST_ONLY: Final = "__Host-"


def cookie_name(app_state: AppState, name: str) -> str:
    """Return the name of a cookie in the browser."""
    return f"{_HOST_ONLY}{name}" if app_state.https else name


def read_cookie(app_state: AppState, request: Request, name: str) -> str | None:
    """Return a cookie; None if there are two of the name, because then somebody else has set one of them."""
    wanted = cookie_name(app_state, name)
    pairs = (part.partition("=") for header in request.headers.getlist("cookie") for part in header.split(";"))
    if sum(given.strip() == wanted for given, _, _ in pairs) > 1:
        return None
    return request.cookies.get(wanted)


def set_cookie(app_state: AppState, answer: Response, name: str, value: str, *, lasts: int) -> None:
    """Set a cookie for some seconds."""
    answer.set_cookie(
        cookie_name(app_state, name), value, max_age=lasts, httponly=True, samesite="lax", secure=app_state.https
    )


def drop_cookie(app_state: AppState, answer: Response, name: str) -> None:
    """Delete a cookie."""
    answer.delete_cookie(cookie_name(app_state, name), httponly=True, samesite="lax", secure=app_state.https)
