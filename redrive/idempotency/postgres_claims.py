"""Idempotency keys in Postgres, for callers: fast, or not at all. A start never waits long for the database."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from pydantic_core import from_json
from temporalio.client import Client

from redrive.contracts import MIB, ClaimRequest, KeyClaim, KeyStatus
from redrive.errors import InvalidInput, Unavailable
from redrive.home import check_namespace, namespace_id
from redrive.idempotency.claims import Claim, ClaimResult, Settlement, without_secrets
from redrive.keys import IdempotencyKey, run_id_for_key
from redrive.logs import get_logger
from redrive.postgres.database import CircuitBreaker, DeadlinePool
from redrive.postgres.tenancy import Executor, Session, scoped
from redrive.postgres.values import clean, clean_or_none, json_text
from redrive.redaction.redactor import Redactor

T = TypeVar("T")

LONGEST: Final = timedelta(seconds=3)

log = get_logger(__name__)


class PostgresClaims:
    """Keep keys in a database, and work without it while it is down."""

    def __init__(
        self, database_url: str, *, free_failed: bool = False, redactor: Redactor | None = None, max_size: int = 10
    ) -> None:
        self.pool = DeadlinePool(database_url, max_size)
        self._breaker = CircuitBreaker(self.pool, LONGEST)
        self._free_failed = free_failed
        self._redactor = redactor or Redactor()
        self._is_home = False

    async def check_home(self, client: Client) -> None:
        """Raise if the keys belong to another namespace's runs: one key would have a run in each. Asked once."""
        if self._is_home:
            return
        try:
            own = await namespace_id(client)
        except Unavailable:
            # The start itself tells what is wrong with Temporal; a key that has ended is answered without it.
            return

        async def is_checked(session: Session) -> bool:
            await check_namespace(own, client.namespace, session)
            return True

        self._is_home = await self._breaker.ask(is_checked, _tell_unchecked) is True

    async def claim(self, request: ClaimRequest) -> Claim | None:
        """Take the key, or return what is stored for it; None if the database did not answer in time."""
        return await self._asked(request, lambda session: claim_key(session, request, free_failed=self._free_failed))

    async def release(self, request: ClaimRequest) -> None:
        """Give back a key that was claimed for a start that was refused."""
        await self._asked(request, lambda session: release_key(session, request))

    async def settle(self, request: ClaimRequest, settlement: Settlement) -> None:
        """Record how the run of the key ended, if the worker's own record of it was lost."""
        stored = await without_secrets(settlement, self._redactor)
        await self._asked(request, lambda session: settle_key(session, request, stored))

    async def close(self) -> None:
        """Close the connections."""
        self.pool.close()

    async def _asked(self, request: ClaimRequest, question: Callable[[Session], Awaitable[T]]) -> T | None:
        def tell(error: Exception) -> None:
            log.warning(
                "key.store_away",
                tenant_id=request.tenant,
                run_id=request.run_id,
                idempotency_key=request.key,
                error_type=type(error).__name__,
                error=str(error),
            )

        return await self._breaker.ask(question, tell)


def _tell_unchecked(error: Exception) -> None:
    log.warning("key.home_not_checked", error_type=type(error).__name__, error=str(error))


# A response up to this size is part of the answer to a start; a larger one is read from the row.
INLINE_LIMIT: Final = MIB // 16


# A key that nobody has, as in nearly every start. The function claim_key does this and all the rest, and takes
# twice as long. Neither waits for the disk: see there.
_TAKE_NEW: Final = """
    WITH scope AS MATERIALIZED (
        SELECT set_config('redrive.tenant', $1, true), set_config('synchronous_commit', 'off', true)
    )
    INSERT INTO idempotency_keys
        (tenant, key, domain, user_id, generation, run_id, pipeline, status, request_hash, expires_at)
    SELECT $1, $2, $3, $4, 0, $5, $6, 'processing', $7, $8 FROM scope
    ON CONFLICT DO NOTHING RETURNING true
"""


async def claim_key(database: Executor, request: ClaimRequest, *, free_failed: bool) -> Claim:
    """Take a key for a run, or return what is stored. One round trip for a new key, another for a known one."""
    if request.generation == 0 and await _take_new(database, request):
        return Claim(
            verdict=ClaimResult.CLAIMED,
            generation=0,
            run_id=request.run_id,
            status=KeyStatus.PROCESSING,
            request_hash=request.request_hash,
        )
    row = await database.fetchrow(
        "SELECT * FROM claim_key($1, $2, $3)", json_text(key_fields(request)), free_failed, INLINE_LIMIT
    )
    if row is None:
        raise LookupError(f"the claim of key {request.key!r} has no answer")
    response = row["response"]
    fields = dict(row) | {"response": None if response is None else from_json(response)}
    return Claim.model_validate(fields | {"has_response": response is not None})


async def _take_new(database: Executor, request: ClaimRequest) -> bool:
    domain, user_id = _named(request.key)
    taken = await database.fetchval(
        _TAKE_NEW,
        request.tenant,
        request.key,
        domain,
        user_id,
        request.run_id,
        request.pipeline,
        request.request_hash,
        request.expires_at,
    )
    return bool(taken)


def key_fields(request: ClaimRequest, settlement: Settlement | None = None) -> dict[str, Any]:
    """Return the row of a key, as the functions in the database take it."""
    domain, user_id = _named(request.key)
    fields = request.model_dump() | {"domain": domain, "user_id": user_id}
    if settlement is not None:
        fields |= {
            "run_status": settlement.status,
            "response": settlement.output,
            "error": clean_or_none(settlement.error),
        }
    return fields


def run_claim(
    *, tenant: str, key: str | None, run_id: str, pipeline: str, claim: KeyClaim | None, end: Settlement | None = None
) -> dict[str, Any] | None:
    """Return the row of a run's key; None if the run is not the one of its key."""
    if key is None or claim is None or run_id != run_id_for_key(tenant, key, claim.generation):
        # Started by hand, under another id: a key's run id is computed from it.
        return None
    request = ClaimRequest(tenant=tenant, key=key, run_id=run_id, pipeline=pipeline, **dict(claim))
    return key_fields(request, end)


def _named(key: str) -> tuple[str, str | None]:
    """Return the domain and the user that a key names, if it follows the convention."""
    try:
        parsed = IdempotencyKey.parse(key)
    except InvalidInput:
        return "", None
    return clean(parsed.domain), clean(parsed.user)


async def settle_key(database: Executor, request: ClaimRequest, settlement: Settlement) -> None:
    """Record how the run of a key ended."""
    await database.execute("SELECT settle_key($1)", json_text(key_fields(request, settlement)))


# A generation above the first is not given back: its number would be used for a second run.
_RELEASE: Final = """
    DELETE FROM idempotency_keys
    WHERE tenant = $1 AND key = $2 AND run_id = $3 AND generation = 0 AND status = 'processing' AND request_hash = $4
"""


async def release_key(session: Session, request: ClaimRequest) -> None:
    """Give back a key whose start was refused."""
    async with scoped(session, request.tenant):
        await session.execute(_RELEASE, request.tenant, request.key, request.run_id, request.request_hash)
