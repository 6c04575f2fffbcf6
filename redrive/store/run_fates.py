"""Where runs are, for whoever started many of them and follows each: one query for all."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from redrive.contracts import RunStatus
from redrive.postgres.tenancy import Pool, reading
from redrive.postgres.values import Record

# A dead letter's id is computed from its run and step (`LetterId`).
_FATES: Final = """
    SELECT runs.run_id, runs.status, runs.failed_step, letter.cycle, letter.attempt_count, letter.message,
        letter.category, letter.first_failed_at, letter.last_failed_at, letter.replayed_by, letter.resolution_reason,
        letter.resolved_by, key.error AS end_error
    FROM unnest($1::text[], $2::text[], $3::text[]) AS asked (tenant, run_id, failed_step)
    JOIN runs ON runs.run_id = asked.run_id AND runs.tenant = asked.tenant
    LEFT JOIN LATERAL (
        SELECT cycle, jsonb_array_length(attempts) AS attempt_count, message, category, first_failed_at, last_failed_at,
            replayed_by, resolution_reason, resolved_by
        FROM dead_letters
        WHERE id = 'dead-letter-' || runs.run_id || '-' || coalesce(runs.failed_step, asked.failed_step)
            AND tenant = runs.tenant
    ) AS letter ON true
    LEFT JOIN idempotency_keys AS key
        ON runs.status IN ('FAILED', 'CANCELED') AND key.tenant = runs.tenant AND key.key = runs.idempotency_key
            AND key.run_id = runs.run_id
"""


class RunFate(Record):
    """A run's status, and the dead letter of the step that failed last, if any."""

    run_id: str
    status: RunStatus
    failed_step: str | None
    cycle: int | None
    attempt_count: int | None
    message: str | None
    category: str | None
    first_failed_at: datetime | None
    last_failed_at: datetime | None
    replayed_by: str | None
    resolution_reason: str | None
    resolved_by: str | None
    end_error: str | None


class Followed(NamedTuple):
    """A run to ask about, and the step that was last known to have failed: the row of a run that succeeded has none."""

    tenant: str
    run_id: str
    failed_step: str | None


async def fates_of(pool: Pool, runs: Sequence[Followed]) -> dict[str, RunFate]:
    """Return where these runs are. A run that is under way for the first time has no row."""
    async with reading(pool, None) as connection:
        rows = await connection.fetch(_FATES, *map(list, zip(*runs, strict=True)))
    return {row["run_id"]: RunFate.model_validate(dict(row)) for row in rows}
