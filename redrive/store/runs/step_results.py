"""Stored results of steps: a module with `dedupe=True` gets its stored result when its step is executed again."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic_core import from_json

from redrive.postgres.tenancy import Pool
from redrive.postgres.text import json_text

KEPT: Final = timedelta(days=30)


@dataclass(frozen=True)
class Execution:
    """One execution of a step. Cycle and attempt are the fence: only the newest that has begun may write."""

    tenant: str
    key: str
    run_id: str
    step: str
    cycle: int
    attempt: int

    def fields(self) -> dict[str, Any]:
        """Return the row, as the functions in the database take it."""
        return vars(self) | {"expires_at": datetime.now(UTC) + KEPT}


@dataclass(frozen=True)
class Standing:
    """The valid result, if there is one; whether this execution may make one, and whether it made this one."""

    is_done: bool
    output: Any
    may_run: bool = False
    is_own: bool = False


async def begin(pool: Pool, execution: Execution) -> Standing:
    """Return the stored result, or take the fence for this execution. One round trip."""
    row = await pool.fetchrow("SELECT * FROM begin_step($1)", json_text(execution.fields()))
    if row is None:
        raise LookupError(f"step {execution.key!r}: the database gave no answer")
    return Standing(row["is_done"], _read(row["output"]), row["may_run"])


async def finish(pool: Pool, execution: Execution, output: Any) -> Standing:
    """Store the result unless a newer execution has begun, and return the valid one. One round trip."""
    row = await pool.fetchrow("SELECT * FROM finish_step($1)", json_text(execution.fields() | {"output": output}))
    if row is None:
        raise LookupError(f"step {execution.key!r}: the database gave no answer")
    return Standing(row["is_done"], _read(row["output"]), is_own=row["is_own"])


def _read(output: str | None) -> Any:
    return None if output is None else from_json(output)
