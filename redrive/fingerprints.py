"""Failures that look alike: the fingerprint of a failure, with what differs from case to case taken out. Pure."""

import hashlib
import re

from redrive.contracts import FailedCycle

_VARIABLE = re.compile(
    r"""
    [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}   # UUID
    | \brun-[a-z0-9]{32}\b                                         # run id
    | \b0x[0-9a-f]+\b | \b[0-9a-f]{12,}\b                          # addresses, digests
    | '[^']{0,200}' | "[^"]{0,200}"                                # quoted values
    | \d+(?:[.,:]\d+)*                                             # numbers, times
    """,
    re.VERBOSE | re.IGNORECASE,
)


def fingerprint(pipeline: str, cycle: FailedCycle) -> str:
    """Return the same short text for failures with the same cause."""
    shape = _VARIABLE.sub("?", cycle.message[:500])
    text = "\n".join((pipeline, cycle.step, cycle.category, cycle.error_type, " ".join(shape.split())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
