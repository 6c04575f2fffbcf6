"""Pages from templates. Everything is escaped: what comes from an error or a caller is text."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from redrive.access import Principal, Right
from redrive.console.app_state import app_state_of
from redrive.console.authentication import csrf_token
from redrive.console.cookies import SESSION, read_cookie
from redrive.console.web import template_filters as words
from redrive.keys import new_request_id
from redrive.postgres.tenancy import QUARANTINE

TEMPLATES: Final = Path(__file__).parent / "templates"


class Link(NamedTuple):
    """A place in the navigation."""

    path: str
    title: str
    right: Right = Right.READ


PLACES: Final = (
    Link("/", "Overview"),
    Link("/dead-letters", "Dead letters"),
    Link("/events", "Events"),
    Link("/messages", "Messages"),
    Link("/bulk", "Bulk"),
    Link("/runs", "Runs"),
    Link("/modules", "Modules"),
    Link("/audit", "Audit"),
    Link("/tokens", "Tokens", Right.TOKENS),
)

templates: Final = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters |= {
    "ago": words.ago,
    "broker_reference": words.broker_reference,
    "cause": words.cause,
    "count": words.count,
    "first_line": words.first_line,
    "json": words.json_text,
    "marked_text": words.marked_text,
    "marked": words.marked,
    "short": words.short,
    "span": words.span,
    "when": words.when,
}
templates.globals |= {"new_request_id": new_request_id, "quarantine": QUARANTINE}


def show(request: Request, caller: Principal | None, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Answer with a page, for a signed-in caller or, without one, for a stranger."""
    session = read_cookie(app_state_of(request), request, SESSION)
    rights = {right.value: bool(caller and caller.may(right)) for right in Right}
    places = [place for place in PLACES if caller and caller.may(place.right)]
    text = templates.get_template(template).render(
        caller=caller,
        can=rights,
        csrf=csrf_token(session) if session else "",
        here=_here(request.url.path),
        now=datetime.now(UTC),
        path=request.url.path,
        places=places,
        **values,
    )
    return HTMLResponse(text, status_code=status)


def _here(path: str) -> str:
    """Return the navigation entry of a path."""
    fitting = [place.path for place in PLACES if path == place.path or path.startswith(f"{place.path}/")]
    return max(fitting, key=len, default="")
