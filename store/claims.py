"""Idempotency keys in Postgres, for callers: quick, or not at all. A start never waits long for the database."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from redrive.claims import Claim, ClaimRequest, Settlement, without_secrets
from redrive.logs import get_logger
from redrive.redaction import Redactor
from store.express import Express
from store.keys import claim_key, release_key, settle_key
from store.patience import Patience
from store.tenancy import Session

T = TypeVar("T")

LONGEST: Final = timedelta(seconds=3)

log = get_logger(__name__)


class PostgresClaims:
    """Keep keys in a database, and go on without it while it is away."""

    def __init__(
        self, database_url: str, *, free_failed: bool = False, redactor: Redactor | None = None, max_size: int = 10
    ) -> None:
        self._express = Express(database_url, max_size)
        self._patience = Patience(self._express, LONGEST)
        self._free_failed = free_failed
        self._redactor = redactor or Redactor()

    async def claim(self, request: ClaimRequest) -> Claim | None:
        """Take the key, or say what is there; None when the database did not answer in time."""
        return await self._asked(request, lambda session: claim_key(session, request, free_failed=self._free_failed))

    async def release(self, request: ClaimRequest) -> None:
        """Give back a key that was claimed for a start that was refused."""
        await self._asked(request, lambda session: release_key(session, request))

    async def settle(self, request: ClaimRequest, settlement: Settlement) -> None:
        """Write how the run of the key ended, where the worker's own word about it was lost."""
        stored = await without_secrets(settlement, self._redactor)
        await self._asked(request, lambda session: settle_key(session, request, stored))

    async def close(self) -> None:
        """Close the connections."""
        self._express.close()

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

        return await self._patience.ask(question, tell)
