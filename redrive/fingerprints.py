"""Fingerprints that group similar failures: what differs from case to case is removed. Pure."""

import hashlib
import re
from typing import Final

from redrive.contracts import ERROR_TEXT_LIMIT, FailedCycle

SHAPE_LIMIT: Final = 300

# Each part is linear or bounded: a long text of quotes or dashes costs no more than any other.
_VARIABLE: Final = re.compile(
    r"""
    (?<![\w])'[^\n]{0,200}?'(?!\w) | "[^"\n]*+"              # quoted values; not the apostrophe in "can't"
    | (?<![\w-])(?=[a-z_-]*+[0-9])[\w-]{16,}+                 # ids: UUIDs, run ids, digests, tokens
    | \b0x[0-9a-f]++                                          # addresses
    | [0-9]++(?:[.,:][0-9]++)*+                               # numbers, times
    """,
    re.VERBOSE | re.IGNORECASE,
)


def fingerprint(pipeline: str, cycle: FailedCycle) -> str:
    """Return the same short text for failures with the same cause."""
    # Cut after the values are removed: a longer id must not move the end.
    shape = " ".join(_VARIABLE.sub("?", cycle.message[:ERROR_TEXT_LIMIT]).split())[:SHAPE_LIMIT]
    text = "\n".join((pipeline, cycle.step, cycle.category, cycle.error_type, shape))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
