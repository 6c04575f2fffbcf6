"""Ask for a run inside the caller's own transaction, over the caller's own connection.

Drivers are told apart by their classes, and never imported here: only what the caller uses is loaded.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack
from uuid import UUID

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from redrive.contracts import DEFAULT_TENANT, NAME_PATTERN
from redrive.documents import check_payload, validation_sentence
from redrive.errors import InvalidInput, NotConfigured
from redrive.field_types import Labels
from redrive.keys import check_identifiers, check_key
from redrive.outbox.installation import DEFAULT_SCHEMA, checked_schema

_LABELS: Final[TypeAdapter[dict[str, str]]] = TypeAdapter(Labels)
_DRIVERS: Final = {
    ("asyncpg", "Connection"): "asyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg",
    ("psycopg", "AsyncConnection"): "psycopg async",
    ("psycopg", "Connection"): "psycopg",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy async",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy async",
    ("sqlalchemy", "Session"): "sqlalchemy",
    ("sqlalchemy", "Connection"): "sqlalchemy",
}
_TYPES: Final = {
    "pipeline": "text",
    "payload": "jsonb",
    "key": "text",
    "tenant": "text",
    "run_after": "timestamptz",
    "ordering_key": "text",
    "labels": "jsonb",
    "correlation_id": "text",
    "user_id": "text",
}
# What the function raises about its arguments; and no function, table or schema of that name.
_REFUSED: Final = {"22023", "23505", "23514"}
_NOT_THERE: Final = {"42883", "42P01", "3F000"}


class RowOptions(TypedDict, total=False):
    """What may be said of a row besides its pipeline and payload."""

    key: str | None
    """The same key again, with the same payload, is the same row and the same run."""
    tenant: str
    run_after: datetime | None
    """The run does not start before this moment."""
    ordering_key: str | None
    """Rows with the same one run one after another, in the order in which their transactions commit."""
    labels: Mapping[str, str] | None
    correlation_id: str | None
    user_id: str | None
    schema: str
    """The schema in which the outbox is installed."""


@dataclass(frozen=True)
class _Call:
    schema: str
    values: dict[str, Any]

    def sql(self, marks: Iterator[str]) -> str:
        """Return the statement, with the driver's own marks for its values."""
        given = ", ".join(
            f"{name} => CAST({mark} AS {kind})" for (name, kind), mark in zip(_TYPES.items(), marks, strict=False)
        )
        return f"SELECT {self.schema}.enqueue({given})"


async def enqueue(
    connection: Any,
    pipeline: str,
    payload: Mapping[str, Any] | BaseModel,
    **options: Unpack[RowOptions],
) -> UUID:
    """Ask for a run of a pipeline in the connection's transaction, and return the row's id (`event_id`).

    The connection is one of asyncpg, an `AsyncConnection` of psycopg, or an `AsyncSession` or `AsyncConnection` of
    SQLAlchemy. The run starts when the transaction commits, not before `run_after`, and never if it rolls back.
    """
    call = _call(pipeline, payload, options)
    with _refusals(call.schema):
        match _driver(connection):
            case "asyncpg":
                marks = (f"${number}" for number in range(1, len(_TYPES) + 1))
                return _id(await connection.fetchval(call.sql(marks), *call.values.values()))
            case "psycopg async":
                cursor = await connection.execute(call.sql(f"%({name})s" for name in _TYPES), call.values)
                return _id(await cursor.fetchone())
            case "sqlalchemy async":
                return _id((await connection.execute(_text(call), call.values)).scalar_one())
    raise InvalidInput(
        f"connection: {type(connection).__module__}.{type(connection).__qualname__} is not a connection of asyncpg, an "
        "AsyncConnection of psycopg or an AsyncSession of SQLAlchemy; for blocking ones there is enqueue_sync"
    )


def enqueue_sync(
    connection: Any,
    pipeline: str,
    payload: Mapping[str, Any] | BaseModel,
    **options: Unpack[RowOptions],
) -> UUID:
    """Do the same on a blocking connection: psycopg's `Connection`, or a `Session` or `Connection` of SQLAlchemy."""
    call = _call(pipeline, payload, options)
    with _refusals(call.schema):
        match _driver(connection):
            case "psycopg":
                return _id(connection.execute(call.sql(f"%({name})s" for name in _TYPES), call.values).fetchone())
            case "sqlalchemy":
                return _id(connection.execute(_text(call), call.values).scalar_one())
    raise InvalidInput(
        f"connection: {type(connection).__module__}.{type(connection).__qualname__} is not a Connection of psycopg or "
        "a Session of SQLAlchemy; for those that are awaited there is enqueue"
    )


def _call(pipeline: str, payload: Mapping[str, Any] | BaseModel, options: RowOptions) -> _Call:
    """Check what a bridge would refuse later, while the caller can still do something about it."""
    document = check_payload(payload.model_dump(mode="json") if isinstance(payload, BaseModel) else payload)
    tenant, key, run_after = options.get("tenant", DEFAULT_TENANT), options.get("key"), options.get("run_after")
    ids = {
        "ordering_key": options.get("ordering_key"),
        "correlation_id": options.get("correlation_id"),
        "user_id": options.get("user_id"),
    }
    check_identifiers(key=key, **ids)
    _check_names(pipeline=pipeline, tenant=tenant)
    if run_after is not None and run_after.tzinfo is None:
        raise InvalidInput(f"run_after: {run_after} has no time zone; write datetime.now(UTC) + …")
    values = {
        "pipeline": pipeline,
        "payload": to_json(document).decode(),
        "key": key if key is None else check_key(key),
        "tenant": tenant,
        "run_after": run_after,
        "labels": to_json(_checked_labels(options.get("labels") or {})).decode(),
        **ids,
    }
    return _Call(checked_schema(options.get("schema", DEFAULT_SCHEMA)), {name: values[name] for name in _TYPES})


def _checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    try:
        return _LABELS.validate_python(dict(labels))
    except ValidationError as error:
        raise InvalidInput(f"labels: {validation_sentence(error)}") from None


def _check_names(**names: str) -> None:
    for field, value in names.items():
        if not re.fullmatch(NAME_PATTERN, value):
            raise InvalidInput(f"{field}: {value[:80]!r} must match {NAME_PATTERN}")


def _driver(connection: Any) -> str | None:
    """Return which driver's connection this is, by its classes."""
    for kind in type(connection).__mro__:
        found = _DRIVERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if found:
            return found
    return None


def _text(call: _Call) -> Any:
    import sqlalchemy  # noqa: PLC0415  # the caller's own: it gave us a session

    return sqlalchemy.text(call.sql(f":{name}" for name in _TYPES))


def _id(found: Any) -> UUID:
    """Return the row's id from whatever form the driver, or a row factory of the caller's, gives it."""
    if isinstance(found, Mapping):
        found = next(iter(found.values()))
    elif isinstance(found, tuple | list):
        found = found[0]
    return found if type(found) is UUID else UUID(str(found))


@contextmanager
def _refusals(schema: str) -> Iterator[None]:
    """Turn what the database says against the call into our errors, whichever driver raises it."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None)
        text = str(cause).partition("\n")[0]
        if state in _REFUSED and "enqueue(" in text:
            raise InvalidInput(text[text.index("enqueue(") :]) from error
        if state in _NOT_THERE:
            raise NotConfigured(
                f"there is no outbox in the schema {schema!r} of this database: `redrive outbox install` makes it"
            ) from error
        raise
