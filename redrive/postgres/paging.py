"""Pages of a list. A cursor is the position after the last row, so every page costs the same."""

import base64
import hashlib
import string
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field, ValidationError

from redrive.errors import InvalidInput
from redrive.postgres.tenancy import Connection
from redrive.postgres.values import Record
from redrive.prefixes import PREFIXES_COUNTED, SHORTEST_PREFIX

LARGEST_PAGE: Final = 1000
# How far a list is counted if it has no counter.
COUNTED: Final = 10_000
# A cursor has the length of its checksum, then the time of the last row in microseconds, then its id.
_SEAL: Final = 6
_TIME: Final = struct.Struct(">q")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_UUID_DIGITS: Final = 32
_HEX: Final = frozenset(string.hexdigits)
Row = TypeVar("Row")

if TYPE_CHECKING:
    import asyncpg


@dataclass(frozen=True)
class Page(Generic[Row]):
    """Some rows of a list, and the cursor of the next page; no cursor: there are no more.

    A page of a search may have fewer rows than asked for, or none, and still a cursor: one page reads only so far.
    """

    rows: list[Row]
    cursor: str | None


class Total(Record):
    """How many rows a list has."""

    count: int
    exact: bool = Field(description="false: at least so many")


class Place(NamedTuple):
    """The position at which a page ends."""

    at: datetime
    id: str
    kind: str = ""


class ListCursor(BaseModel):
    """What every cursor has: the list that it belongs to."""

    list: str


CursorOf = TypeVar("CursorOf", bound=ListCursor)


@dataclass
class Query:
    """An SQL text with its parameters, built step by step."""

    conditions: list[str] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)

    def add(self, value: Any) -> str:
        """Add a parameter and return its placeholder."""
        self.parameters.append(value)
        return f"${len(self.parameters)}"

    def where(self, condition: str, *values: Any) -> None:
        """Add a condition, with `{}` for each value."""
        self.conditions.append(condition.format(*(self.add(value) for value in values)))

    def where_given(self, condition: str, value: Any) -> None:
        """Add a condition on a value, if there is a value."""
        if value is not None:
            self.where(condition, value)

    @property
    def sql(self) -> str:
        """All conditions."""
        return " AND ".join(self.conditions) or "true"

    def select(self, columns: str, source: str, order: str = "", limit: int | None = None) -> str:
        """Return the statement that reads the rows for which all conditions hold, the first of them up to a limit."""
        most = "" if limit is None else f"LIMIT {self.add(limit)}"
        return select(columns, source, f"WHERE {self.sql} {order} {most}")


def select(columns: str, source: str, rest: str = "") -> str:
    """Return a statement composed of our own words: the only place that does. Values are parameters."""
    return f"SELECT {columns} FROM {source} {rest}"  # noqa: S608


async def ids_beginning(
    connection: "Connection | asyncpg.Connection[asyncpg.Record]", source: str, beginnings: Sequence[str]
) -> list[str]:
    """Return some ids that begin so; none for a beginning that is too short to be meant."""
    query = Query()
    texts = [text for text in beginnings if len(text) >= SHORTEST_PREFIX]
    query.conditions = [" OR ".join(f"starts_with(id, {query.add(text)})" for text in texts) or "false"]
    rows = await connection.fetch(query.select("id", source, "ORDER BY id", PREFIXES_COUNTED), *query.parameters)
    return [row["id"] for row in rows]


def uuids_beginning(text: str) -> tuple[UUID, UUID] | None:
    """Return the first and last UUID that begin with a text; None if none does, or it is too short to be meant."""
    digits = text.replace("-", "")
    if not SHORTEST_PREFIX <= len(digits) <= _UUID_DIGITS or not _HEX.issuperset(digits):
        return None
    return UUID(digits.ljust(_UUID_DIGITS, "0")), UUID(digits.ljust(_UUID_DIGITS, "f"))


def check_limit(limit: int) -> None:
    """Refuse a page of no or too many rows."""
    if not 1 <= limit <= LARGEST_PAGE:
        raise InvalidInput(f"limit {limit}: a page has 1 to {LARGEST_PAGE} rows")


def cut(rows: list[Row], limit: int, place: Callable[[Row], Place], of: BaseModel) -> Page[Row]:
    """Return a page of rows that were read with one more than its limit: if that one exists, there is a next page."""
    shown = rows[:limit]
    return Page(shown, write_cursor(place(shown[-1]), of) if len(rows) > limit else None)


def write_cursor(place: Place, of: BaseModel) -> str:
    """Return a cursor for the list that this filter gives: short, since people copy it from one command to the next."""
    at = (place.at - _EPOCH) // _MICROSECOND
    body = _TIME.pack(at) + f"{place.kind}\0{place.id}".encode()
    return _written(_seal(body, of) + body)


def read_cursor(cursor: str | None, of: BaseModel) -> Place | None:
    """Return the position that a cursor names, or refuse it."""
    if cursor is None:
        return None
    try:
        data = _read(cursor)
        seal, body = data[:_SEAL], data[_SEAL:]
        kind, found, row_id = body[_TIME.size :].decode().partition("\0")
        place = Place(_EPOCH + _TIME.unpack_from(body)[0] * _MICROSECOND, row_id, kind)
    except (ValueError, OverflowError, struct.error):
        raise foreign_cursor(cursor) from None
    if not found or "\0" in row_id:
        raise foreign_cursor(cursor)
    if seal != _seal(body, of):
        raise InvalidInput("the cursor belongs to a list with other filters, or is not whole: start again without one")
    return place


def _seal(body: bytes, of: BaseModel) -> bytes:
    """Return a checksum over a position and the list that it is in."""
    return hashlib.sha256(body + of.model_dump_json().encode()).digest()[:_SEAL]


def pack(cursor: ListCursor) -> str:
    """Return a cursor in the form that clients get."""
    return _written(cursor.model_dump_json().encode())


def unpack(kind: type[CursorOf], cursor: str, of: BaseModel) -> CursorOf:
    """Read a cursor of the list that this filter gives, or refuse it."""
    try:
        read = kind.model_validate_json(_read(cursor))
    except (ValueError, ValidationError):
        raise foreign_cursor(cursor) from None
    if read.list != mark_of(of):
        raise InvalidInput("the cursor belongs to a list with other filters: start again without one")
    return read


def _written(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _read(cursor: str) -> bytes:
    return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)


def foreign_cursor(cursor: str) -> InvalidInput:
    """Refuse a cursor that no list has given."""
    return InvalidInput(f"cursor {cursor[:40]!r} is not one that a list gave: start again without one")


def mark_of(of: BaseModel) -> str:
    return hashlib.sha256(of.model_dump_json().encode()).hexdigest()[:12]
