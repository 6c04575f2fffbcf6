"""Pages from templates, and the filters that format values on them: times, durations, counts, ids, JSON.

Everything is escaped: what comes from an error or a caller is text.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from pydantic_core import to_json

from redrive.access import Principal, Right
from redrive.categories import Category
from redrive.console.app_state import app_state_of
from redrive.console.authentication import SESSION, chosen_tenant, csrf_token, read_cookie
from redrive.dead_letters import LetterId
from redrive.keys import new_request_id
from redrive.levels import levels
from redrive.postgres.tenancy import QUARANTINE
from redrive.redaction.redactor import MARK
from redrive.store.audit import AuditLine
from redrive.store.audit_subjects import SubjectKind

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SHOWN_ID: Final = 8
# Deep nesting makes indented JSON many times as long.
_INDENTED: Final = 512 * 1024
_PAGES: Final = {
    SubjectKind.DEAD_LETTER: "/dead-letters/",
    SubjectKind.RUN: "/runs/",
    SubjectKind.EVENT: "/events/",
    SubjectKind.DEAD_EVENT: "/events/dead/",
    SubjectKind.MESSAGE: "/messages/",
    SubjectKind.OUTBOX_ROW: "/events/outbox/",
    SubjectKind.PLAN: "/bulk/approvals/",
    SubjectKind.BULK: "/bulk/",
    SubjectKind.SCHEDULE: "/schedules/",
}
# People have named these: their ids are shown whole.
_NAMED: Final = frozenset({SubjectKind.SCHEDULE, SubjectKind.PIPELINE, SubjectKind.MEMBER, SubjectKind.RECORDS})
TEMPLATES: Final = Path(__file__).parent / "templates"


def cause(category: Category) -> str:
    """Return what a category means for an operator."""
    return category.advice


def span(given: timedelta | float) -> str:
    """Return a duration in its two largest units: `250 ms`, `4.5 s`, `2 min 30 s`, `3 d 4 h`."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    rest = round(seconds)
    parts = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Return how long ago a moment is, in one unit: `just now`, `12 min ago`, `in 5 s`."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    size = abs(seconds)
    if size < 1:
        return "just now"
    length, unit = next((length, unit) for length, unit in _UNITS if size >= length)
    text = f"{size // length:.0f} {unit}"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def when(moment: datetime | None) -> Markup:
    """Return a moment as the time since, with the exact time on hover."""
    if moment is None:
        return Markup("")
    exact = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact.isoformat(), _exact(exact), ago(moment))


def moment(written: str) -> str:
    """Return a moment that was written as JSON."""
    return _exact(datetime.fromisoformat(written).astimezone(UTC))


def _exact(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def count(number: int) -> str:
    """Return a number with thin spaces between its thousands."""
    return f"{number:,}".replace(",", "\u202f")


def short(identity: str) -> str:
    """Return the end of a long id, which tells runs apart."""
    return identity if len(identity) <= _SHOWN_ID + 6 else f"…{identity[-_SHOWN_ID:]}"


def step_name(step: str) -> str:
    """Return what a step is called: of a foreign workflow, what failed."""
    return LetterId(tenant="", run_id="", step=step).module


def first_line(text: str, limit: int = 200) -> str:
    """Return a text as one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def json_text(value: Any) -> str:
    """Return a value as indented JSON; without line breaks if they would fill most of the page."""
    text = to_json(value)
    lines = text.count(b",") + 2 * (text.count(b"[") + text.count(b"{"))
    depth = sum(1 for _ in levels(value))
    return to_json(value, indent=2).decode() if len(text) + 2 * lines * depth <= _INDENTED else text.decode()


def marked(value: Any) -> Markup:
    """Return a value as indented JSON in which redacted values are highlighted."""
    return marked_text(json_text(value))


def marked_text(text: str) -> Markup:
    """Return a text in which redacted values are highlighted."""
    mark = Markup('<mark title="redacted: the true value is kept">{}</mark>').format(MARK)
    return Markup(str(escape(text)).replace(MARK, str(mark)))  # noqa: S704 - escaped before


class Reference(NamedTuple):
    """The kind and short name of a thing, and the address of its page, if it has one."""

    kind: str
    name: str
    address: str | None


def reference(line: AuditLine) -> Reference | None:
    """Return what an entry of the audit log is about, or None."""
    subject = line.subject
    if subject is None:
        return None
    place = _PAGES.get(subject.kind)
    page = subject.id.removeprefix("outbox-") if subject.kind is SubjectKind.OUTBOX_ROW else subject.id
    address = f"{place}{quote(page, safe='')}" if place else None
    if subject.kind is SubjectKind.DEAD_LETTER:
        return Reference(step_name(line.step or ""), short(line.run_id or ""), address)
    if subject.kind is SubjectKind.TOKEN:
        return Reference(str(subject.kind), str((line.after or {}).get("name") or subject.id), address)
    return Reference(str(subject.kind), subject.id if subject.kind in _NAMED else short(subject.id), address)


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
    Link("/schedules", "Schedules"),
    Link("/modules", "Modules"),
    Link("/audit", "Audit"),
    Link("/tokens", "Tokens", Right.TOKENS),
)


# What an owner looks at for one tenant or for all.
LISTS: Final = frozenset({*(place.path for place in PLACES), "/retrying", "/events/outbox"})


templates: Final = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


templates.filters |= {
    "ago": ago,
    "reference": reference,
    "cause": cause,
    "count": count,
    "first_line": first_line,
    "json": json_text,
    "marked_text": marked_text,
    "marked": marked,
    "short": short,
    "step_name": step_name,
    "span": span,
    "moment": moment,
    "when": when,
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
        picked=picked_tenant(request) if caller and caller.tenant is None else None,
        picked_next=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        lists=LISTS,
        places=places,
        **values,
    )
    return HTMLResponse(text, status_code=status)


def picked_tenant(request: Request) -> str | None:
    """Return the tenant that an owner's page is about: the list's own, or of other pages the chosen one."""
    named = request.query_params.get("tenant") or None
    return named or (None if request.url.path in LISTS else chosen_tenant(app_state_of(request), request))


def _here(path: str) -> str:
    """Return the navigation entry of a path."""
    fitting = [place.path for place in PLACES if path == place.path or path.startswith(f"{place.path}/")]
    return max(fitting, key=len, default="")
