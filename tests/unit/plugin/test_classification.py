"""Redrive's classes of errors on plain activities."""

from datetime import timedelta

import httpx
import pytest
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from redrive.plugin.classification import ClassifyingInterceptor


def answer(status: int, **headers: str) -> httpx.HTTPStatusError:
    """Return the error of an answer with this status."""
    request = httpx.Request("GET", "https://provider.test/")
    response = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError(f"status {status}", request=request, response=response)


class Failing(ActivityInboundInterceptor):
    """An activity that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002 - Temporal's name
        """Raise."""
        raise self._error


async def raised_by(error: Exception, *, is_local: bool = False) -> BaseException:
    """Return what an activity raises in place of an error."""
    interceptor = ClassifyingInterceptor().intercept_activity(Failing(error))
    environment = ActivityEnvironment()
    environment.info = environment.info.__class__(**{**vars(environment.info), "is_local": is_local})

    async def run() -> None:
        await interceptor.execute_activity(ExecuteActivityInput(fn=run, args=[], executor=None, headers={}))

    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is the question
        await environment.run(activity.defn(run))
    return caught.value


async def test_a_4xx_is_not_tried_again_under_its_own_type() -> None:
    """The users' own `non_retryable_error_types` still match."""
    error = await raised_by(answer(404))
    assert isinstance(error, ApplicationError)
    assert (error.type, error.non_retryable, error.message) == ("HTTPStatusError", True, "status 404")


async def test_retry_after_is_the_next_delay() -> None:
    """A service that asks for a pause gets it, within a limit; a local activity has no such delay."""
    error = await raised_by(answer(429, **{"retry-after": "7"}))
    assert isinstance(error, ApplicationError)
    assert (error.non_retryable, error.next_retry_delay) == (False, timedelta(seconds=7))
    longest = await raised_by(answer(503, **{"retry-after": "86400"}))
    assert isinstance(longest, ApplicationError)
    assert longest.next_retry_delay == timedelta(minutes=10)
    assert isinstance(await raised_by(answer(429, **{"retry-after": "7"}), is_local=True), httpx.HTTPStatusError)


@pytest.mark.parametrize(
    "error", [answer(503), ConnectionError("away"), ValueError("who knows"), ApplicationError("x")]
)
async def test_an_error_without_news_is_left_alone(error: Exception) -> None:
    """What Temporal would do anyway needs no other error."""
    assert await raised_by(error) is error
