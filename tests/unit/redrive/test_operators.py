"""What the operators' client refuses before anything is sent."""

import pytest
from temporalio.client import Client

from redrive.dead_letters import LetterId
from redrive.errors import InvalidInput
from redrive.operators import DeadLetters

LETTER = LetterId(tenant="t", run_id="run-1", step="second")


@pytest.fixture
async def letters() -> DeadLetters:
    """Orders that could not be sent: there is no server."""
    return DeadLetters(await Client.connect("127.0.0.1:1", lazy=True), "queue")


@pytest.mark.parametrize(
    ("who", "why", "request_id", "field"),
    [("", "x", None, "requested_by"), ("ada", "", None, "reason"), ("ada", "x", "i" * 256, "request_id")],
)
async def test_order_without_who_and_why_is_refused(
    letters: DeadLetters, who: str, why: str, request_id: str | None, field: str
) -> None:
    """With the name of the field."""
    with pytest.raises(InvalidInput, match=field):
        await letters.discard(LETTER, requested_by=who, reason=why, request_id=request_id)
    with pytest.raises(InvalidInput, match=field):
        await letters.go_on("run-1", requested_by=who, reason=why, request_id=request_id)


async def test_from_step_that_is_no_name_is_refused(letters: DeadLetters) -> None:
    """Names have a shape."""
    with pytest.raises(InvalidInput, match="from_step"):
        await letters.replay(LETTER, requested_by="ada", reason="x", from_step="Not a name")
