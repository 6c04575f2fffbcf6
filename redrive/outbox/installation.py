"""The outbox's SQL: the table and functions in a schema of choice, and what a role may do with them. Pure."""

import re
from importlib.resources import files
from typing import Final

from redrive.errors import InvalidInput

DEFAULT_SCHEMA: Final = "redrive"
# The release of `install.sql`, as its function outbox_version() tells it.
VERSION: Final = 2
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_BRIDGE_FUNCTIONS: Final = (
    *("take", "take_replays", "started", "not_started"),
    *("due", "follow", "release_stuck", "replay"),
)


def checked_schema(name: str) -> str:
    """Return a schema's name that needs no quotes, or raise."""
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_"):
        raise InvalidInput(f"schema: {name[:80]!r} must have 1 to 63 of a-z, 0-9 and _, and not begin with a digit")
    return name


def install_sql(schema: str) -> str:
    """Return the SQL that makes the outbox in a schema; it may be executed again."""
    text = files("redrive.outbox").joinpath("install.sql").read_text(encoding="utf-8")
    return text.replace("@schema@", checked_schema(schema))


def producer_grants(schema: str, role: str) -> str:
    """Return the SQL that lets a role enqueue, and nothing else."""
    to = _quoted(role)
    return f"GRANT USAGE ON SCHEMA {schema} TO {to};\nGRANT EXECUTE ON FUNCTION {schema}.enqueue TO {to};\n"


def operator_grants(schema: str, role: str) -> str:
    """Return the SQL that lets a role read rows and replay them."""
    to = _quoted(role)
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {to};\nGRANT SELECT ON {schema}.outbox, {schema}.outbox_schemas TO {to};\n"
        f"GRANT EXECUTE ON FUNCTION {schema}.outbox_replay TO {to};\n"
    )


def bridge_grants(schema: str, role: str) -> str:
    """Return the SQL that lets a role do what bridges, the console and the commands do."""
    functions = ", ".join(f"{schema}.outbox_{name}" for name in _BRIDGE_FUNCTIONS)
    to = _quoted(role)
    return (
        producer_grants(schema, role)
        + f"GRANT SELECT, UPDATE, DELETE ON {schema}.outbox TO {to};\n"
        + f"GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.outbox_schemas TO {to};\n"
        + f"GRANT EXECUTE ON FUNCTION {functions} TO {to};\n"
    )


def _quoted(role: str) -> str:
    """Return a role's name as SQL."""
    if not role or len(role) > 63 or "\0" in role:
        raise InvalidInput(f"role: {role[:80]!r} is not the name of a role")
    escaped = role.replace('"', '""')
    return f'"{escaped}"'
