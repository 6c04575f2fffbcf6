"""Temporal's refusals as errors of ours."""

from temporalio.service import RPCError

from redrive.errors import Unavailable


def unavailable(error: RPCError) -> Unavailable:
    """Say that Temporal rejected the request."""
    return Unavailable(f"Temporal did not do it ({error.status.name.lower()}): {error.message[:300]}; try again")
