"""What an error means for a message: refuse it, try it again, or wait for somebody."""

import asyncpg
import pytest
from temporalio.service import RPCError, RPCStatusCode

from redrive.bridges.events.intake import Reaction, judge
from redrive.errors import InvalidInput, TooLarge, Unavailable, UnknownPipeline

CASES = [
    (InvalidInput("event: not valid JSON"), Reaction.REFUSE),
    (UnknownPipeline("no such pipeline"), Reaction.REFUSE),
    (TooLarge("too large"), Reaction.REFUSE),
    (Unavailable("no worker answered"), Reaction.WAIT),
    (ConnectionRefusedError(), Reaction.WAIT),
    (TimeoutError(), Reaction.WAIT),
    (RPCError("away", RPCStatusCode.UNAVAILABLE, b""), Reaction.WAIT),
    (asyncpg.ConnectionDoesNotExistError("closed"), Reaction.WAIT),
    (asyncpg.InterfaceError("pool is closing"), Reaction.WAIT),
    (asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress"), Reaction.WAIT),
    (asyncpg.UndefinedTableError("not migrated"), Reaction.WAIT),
    (asyncpg.DataError("this very value"), Reaction.TRY_AGAIN),
    (RuntimeError("a mistake of ours"), Reaction.TRY_AGAIN),
]


@pytest.mark.parametrize(("error", "verdict"), CASES, ids=lambda value: type(value).__name__)
def test_error_decides_what_becomes_of_the_message(error: Exception, verdict: Reaction) -> None:
    """What every message needs is waited for; only what is about this one costs it a try or its place."""
    assert judge(error) is verdict
