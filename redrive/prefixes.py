"""Ids that are named by a beginning of them, as in git: how long it is, and which id is meant. Pure."""

from collections.abc import Collection
from typing import Final

from redrive.errors import InvalidInput, RedriveError

# Of an id: fewer characters are a slip, not a choice.
SHORTEST_PREFIX: Final = 4
PREFIXES_NAMED: Final = 5
# How many ids that begin alike are counted.
PREFIXES_COUNTED: Final = 100


def only_one(text: str, found: Collection[str], what: str, missing: type[RedriveError]) -> str:
    """Return the only id that begins with a text, or raise that there is none, or how many there are."""
    if not found:
        raise missing(
            f"no {what} has the id {text[:200]!r}, nor an id that begins with it (a beginning has at least "
            f"{SHORTEST_PREFIX} characters)"
        )
    if len(found) > 1:
        some = ", ".join(sorted(found)[:PREFIXES_NAMED])
        count = f"at least {PREFIXES_COUNTED}" if len(found) >= PREFIXES_COUNTED else str(len(found))
        raise InvalidInput(f"{text[:200]!r}: {count} ids begin with it, such as {some}: give more of it")
    return next(iter(found))
