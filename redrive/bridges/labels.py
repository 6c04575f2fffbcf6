"""The labels of a message: its tenant, type and key, as far as they can be read without parsing it. Pure.

A refused message is filed by them. It may be anything: broken, truncated, or made to be expensive to parse. Only the
members of the outermost object count, up to the first invalid JSON: a `tenant` inside the payload is not ours.
"""

import re
from dataclasses import dataclass
from typing import Final

from pydantic_core import from_json

from redrive.contracts import NAME_PATTERN

LOOKED_AT: Final = 64 * 1024
_LONGEST: Final = 2048
# Possessive: each byte is read once, whatever follows.
_TOKEN: Final = re.compile(rb'\s*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")|([{}\[\],:])|[^\s"{}\[\],:]++)', re.DOTALL)
_NAMES: Final = {"tenant": "tenant", "type": "event_type", "dedupeKey": "dedupe_key", "dedupe_key": "dedupe_key"}


@dataclass(frozen=True)
class Labels:
    """What a message says about itself. Without a tenant it goes to quarantine."""

    tenant: str | None = None
    event_type: str | None = None
    dedupe_key: str | None = None


def labels_of(body: bytes, named: str | None = None) -> Labels:
    """Read the labels at the beginning of a message; `named` is the tenant named by the broker's own fields."""
    found = _members(body[:LOOKED_AT])
    tenants = {tenant for tenant in (tenant_name(found.get("tenant")), tenant_name(named)) if tenant}
    return Labels(
        # Two different names count as none: showing it to the wrong tenant is worse than asking.
        tenant=tenants.pop() if len(tenants) == 1 else None,
        event_type=_short(found.get("event_type")),
        dedupe_key=_short(found.get("dedupe_key")),
    )


def tenant_name(value: object) -> str | None:
    """Return a value that has the form of a tenant's name, otherwise None."""
    return value if isinstance(value, str) and re.fullmatch(NAME_PATTERN, value) else None


def _short(text: str | None) -> str | None:
    return text if text and len(text) <= 255 else None


def _members(body: bytes) -> dict[str, str]:
    """Return the texts under our names in the outermost object, except names that occur twice with different values."""
    found: dict[str, str] = {}
    differing: set[str] = set()
    position, depth, name, is_value = 0, 0, "", False
    while match := _TOKEN.match(body, position):
        position = match.end()
        text, mark = match.groups()
        if mark in {b"{", b"["}:
            depth += 1
            if depth == 1 and mark == b"[":
                break
        elif mark in {b"}", b"]"}:
            depth -= 1
            if depth <= 0:
                break
        elif depth == 0:
            break
        elif depth == 1 and mark:
            name, is_value = (name, True) if mark == b":" else ("", False)
        elif depth == 1 and text and not is_value:
            name = _NAMES.get(_decoded(text), "")
        elif depth == 1 and text and name:
            value = _decoded(text)
            if found.setdefault(name, value) != value:
                differing.add(name)
    return {name: value for name, value in found.items() if name not in differing}


def _decoded(text: bytes) -> str:
    if len(text) > _LONGEST:
        return ""
    try:
        value = from_json(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
