"""Heads of the audit log, recorded elsewhere and compared later: whoever rewrites the log cannot rewrite them."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from redrive.errors import InvalidInput
from redrive.postgres.tenancy import Pool, reading
from redrive.store.audit.log import last_cut

_HASHES: Final = "SELECT number, hash FROM audit_log WHERE tenant = $1 AND number = ANY ($2::bigint[])"
_HEAD: Final = re.compile(r"([1-9][0-9]{0,17}):([0-9a-f]{64})")


@dataclass(frozen=True)
class Head:
    """The last line of a tenant's audit log at some moment: its number and its hash."""

    tenant: str
    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


def read_head(tenant: str, text: str) -> Head:
    """Read a head as `audit verify` prints it."""
    match = _HEAD.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{text[:80]!r}: not a head; it reads like 1203:9f2c… (a number and 64 hexadecimal digits)")
    return Head(tenant, int(match[1]), match[2])


class Match(StrEnum):
    """The result of comparing a recorded head with the current log."""

    FITS = "fits"
    DIFFERS = "differs"
    MISSING = "missing"
    CUT = "cut"


async def compare(pool: Pool, heads: Iterable[Head]) -> list[tuple[Head, Match]]:
    """Compare recorded heads with the lines of those numbers."""
    by_tenant: dict[str, list[Head]] = defaultdict(list)
    for head in heads:
        by_tenant[head.tenant].append(head)
    matches: list[tuple[Head, Match]] = []
    for tenant, own in by_tenant.items():
        async with reading(pool, tenant) as connection:
            cut, cut_hash = await last_cut(connection, tenant)
            rows = await connection.fetch(_HASHES, tenant, [head.number for head in own])
        known = {row["number"]: row["hash"].hex() for row in rows} | {cut: cut_hash.hex()}
        matches += [(head, Match.CUT if head.number < cut else _match(head, known)) for head in own]
    return matches


def _match(head: Head, known: dict[int, str]) -> Match:
    if head.number not in known:
        return Match.MISSING
    return Match.FITS if known[head.number] == head.hash else Match.DIFFERS


# Of logs that have grown since then. The moment is taken first: lines written meanwhile also appear next time.
_GROWN: Final = """
    SELECT tenant, number, encode(hash, 'hex') AS hash FROM audit_heads
    WHERE $1::timestamptz IS NULL OR tenant IN (SELECT tenant FROM audit_log WHERE at >= $1) ORDER BY tenant
"""


async def grown_heads(pool: Pool, since: datetime | None) -> tuple[list[Head], datetime]:
    """Return the heads of all logs that have grown since a moment, or of all, and the moment for the next call.

    A line has its time before it is committed: the moment is set back by more than a transaction lasts.
    """
    async with reading(pool, None) as connection:
        now: datetime = await connection.fetchval("SELECT now() - interval '5 minutes'")
        rows = await connection.fetch(_GROWN, since)
    return [Head(row["tenant"], row["number"], row["hash"]) for row in rows], now
