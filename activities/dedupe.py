"""Execute a step once: a second execution gets the stored result, and a zombie worker cannot overwrite it."""

from collections.abc import Awaitable, Callable
from typing import Any

from redrive.errors import Category, Transient
from redrive.logs import get_logger
from redrive.postgres.database import DATABASE_ERRORS, Database
from redrive.store.runs.step_results import Execution, begin, finish

log = get_logger(__name__)


async def once(database: Database, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
    """Return the stored result of the step, or run it and store what it returns.

    Without the database the step does not run: the module asked for effects that happen once.
    """
    try:
        pool = await database.pool()
        stored = await begin(pool, execution)
    except DATABASE_ERRORS as error:
        raise Transient(f"the stored results cannot be reached: {error}", category=Category.NETWORK) from error
    if stored.is_done:
        log.info("step.deduplicated")
        return stored.output
    if not stored.may_run:
        raise _superseded(execution)
    output = await run()
    try:
        standing = await finish(pool, execution, output)
    except DATABASE_ERRORS as error:
        raise Transient(f"the result could not be stored: {error}", category=Category.NETWORK) from error
    if not standing.is_own:
        raise _superseded(execution)
    return standing.output


def _superseded(execution: Execution) -> Transient:
    log.warning("step.superseded")
    return Transient(
        f"a newer execution of step {execution.step!r} has begun: the result of this one, "
        f"attempt {execution.attempt} of cycle {execution.cycle}, does not count"
    )
