"""What an error means for a message: refuse it, try it again, or wait for somebody."""

import asyncpg
import pytest
from temporalio.service import RPCError, RPCStatusCode

from redrive.bridges.events.intake import Verdict, judge
from redrive.errors import InvalidInput, TooLarge, Unavailable, UnknownPipeline

CASES = [
    (InvalidInput("event: not valid JSON"), Verdict.REFUSE),
    (UnknownPipeline("no such pipeline"), Verdict.REFUSE),
    (TooLarge("too large"), Verdict.REFUSE),
    (Unavailable("no worker answered"), Verdict.WAIT),
    (ConnectionRefusedError(), Verdict.WAIT),
    (TimeoutError(), Verdict.WAIT),
    (RPCError("away", RPCStatusCode.UNAVAILABLE, b""), Verdict.WAIT),
    (asyncpg.ConnectionDoesNotExistError("closed"), Verdict.WAIT),
    (asyncpg.InterfaceError("pool is closing"), Verdict.WAIT),
    (asyncpg.UndefinedTableError("not migrated"), Verdict.WAIT),
    (asyncpg.DataError("this very value"), Verdict.TRY_AGAIN),
    (RuntimeError("a mistake of ours"), Verdict.TRY_AGAIN),
]


@pytest.mark.parametrize(("error", "verdict"), CASES, ids=lambda value: type(value).__name__)
def test_error_decides_what_becomes_of_the_message(error: Exception, verdict: Verdict) -> None:
    """What every message needs is waited for; only what is about this one costs it a try or its place."""
    assert judge(error) is verdict
