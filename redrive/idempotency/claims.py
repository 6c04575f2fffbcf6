"""Idempotency keys beyond Temporal's retention: the interface between the client and a store.

The client works without a store, on Temporal's lock alone: then a key lives as long as Temporal keeps its run, and a
reset has no effect.
"""

from enum import StrEnum
from typing import Any, Protocol

from pydantic import Field
from temporalio.client import Client

from redrive.contracts import ClaimRequest, KeyStatus, Message, RunStatus
from redrive.redaction.redactor import Redactor


class ClaimResult(StrEnum):
    """The result of a claim."""

    CLAIMED = "claimed"  # nobody had it: start the run
    KNOWN = "known"  # it has a run, or somebody is about to start it
    FREE = "free"  # its last run is over: claim the next generation


class Claim(Message):
    """A key as a claim found or created it."""

    verdict: ClaimResult
    generation: int
    run_id: str
    status: KeyStatus
    request_hash: str
    run_status: RunStatus | None = Field(default=None, description="how the run ended")
    response: Any = None
    has_response: bool = False
    response_size: int | None = Field(default=None, description="of a response that is too big to come along")
    error: str | None = None


class Settlement(Message):
    """How the run of a key ended."""

    status: RunStatus
    output: Any = None
    error: str | None = None


async def without_secrets(settlement: Settlement, redactor: Redactor) -> Settlement:
    """Return what may be stored: an output with secrets is left out, and read from the run instead."""
    is_plain = await redactor.value_aside(settlement.output) == settlement.output
    error = None if settlement.error is None else redactor.text(settlement.error)
    return settlement.model_copy(update={"output": settlement.output if is_plain else None, "error": error})


class Claims(Protocol):
    """Keep keys. No method raises because the store is down: a start works without it."""

    async def check_home(self, client: Client) -> None:
        """Raise if the keys belong to the runs of another Temporal namespace."""

    async def claim(self, request: ClaimRequest) -> Claim | None:
        """Take the key, or return what is stored for it; None if the store did not answer in time."""

    async def release(self, request: ClaimRequest) -> None:
        """Give back a key that was claimed for a start that was refused."""

    async def settle(self, request: ClaimRequest, settlement: Settlement) -> None:
        """Record how the run of the key ended, if the worker's own record of it was lost."""

    async def close(self) -> None:
        """Close the store."""
