"""The way out of quarantine: an owner assigns a message to a tenant."""

import re
from typing import Final
from uuid import UUID

import asyncpg

from redrive.contracts import NAME_PATTERN
from redrive.dead_letters import Discard, Replay
from redrive.errors import InvalidInput
from redrive.postgres.tenancy import QUARANTINE, Pool, transaction
from redrive.postgres.text import clean

NEEDS_TENANT: Final = "it is in quarantine: name the tenant whose it is (assign_to), or discard it"


async def assign_dead_event(pool: Pool, dead_id: str, tenant: str, command: Replay | Discard) -> None:
    """Assign a dead event to a tenant. One that is no longer in quarantine, or not pending, stays where it is."""
    await _assign(pool, "SELECT assign_dead_event($1, $2, $3, $4, $5)", clean(dead_id), tenant, command)


async def assign_dead_message(pool: Pool, message_id: UUID, tenant: str, command: Replay | Discard) -> None:
    """Assign a dead message to a tenant. One that is no longer in quarantine, or not pending, stays where it is."""
    try:
        await _assign(pool, "SELECT assign_dead_message($1, $2, $3, $4, $5)", message_id, tenant, command)
    except asyncpg.UniqueViolationError:
        raise InvalidInput(f"tenant {tenant!r} has the same message already: discard this one") from None


async def _assign(pool: Pool, statement: str, about: str | UUID, tenant: str, command: Replay | Discard) -> None:
    facts = (clean(command.requested_by), clean(command.reason), clean(command.request_id))
    async with transaction(pool, QUARANTINE) as connection:
        await connection.execute(statement, about, tenant, *facts)


def check_assignment(owner: str, assign_to: str | None) -> bool:
    """Tell whether a record must be assigned before it is replayed, or refuse an impossible assignment."""
    if owner == QUARANTINE:
        if assign_to is None:
            raise InvalidInput(NEEDS_TENANT)
        if not re.fullmatch(NAME_PATTERN, assign_to):
            raise InvalidInput(f"assign_to {assign_to[:80]!r}: not a tenant's name ({NAME_PATTERN})")
        return True
    if assign_to not in {None, owner}:
        raise InvalidInput(f"assign_to {assign_to!r}: it belongs to {owner!r} already, and stays there")
    return False
