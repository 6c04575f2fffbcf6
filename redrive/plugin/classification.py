"""Redrive's classes of errors for plain activities: a 4xx is not tried again, `Retry-After` is obeyed."""

from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from redrive.categories import TERMINAL_CATEGORIES
from redrive.classify import Classification, classify
from redrive.contracts import CATEGORY_DETAIL
from redrive.policy import SERVICE_CALL, SHORTEST_DELAY


class ClassifyingInterceptor(Interceptor):
    """Classify the errors of a worker's activities."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        """Return the interceptor of one activity task."""
        return _Inbound(super().intercept_activity(next))


class _Inbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's name
        try:
            return await self.next.execute_activity(input)
        except FailureError:
            # The activity has decided itself.
            raise
        except Exception as error:
            found = classify(error, SERVICE_CALL)
            classified = _classified(error, found)
            if classified is None:
                raise
            raise classified.with_traceback(error.__traceback__) from error.__cause__


def _classified(error: Exception, found: Classification) -> ApplicationError | None:
    """Return an error that says more to Temporal, under the same type, or None if there is nothing to add."""
    is_final = found.category in TERMINAL_CATEGORIES
    # On a local activity, a delay makes Temporal's SDK log a panic.
    wait = None if activity.info().is_local else found.retry_after
    if not is_final and wait is None:
        return None
    return ApplicationError(
        str(error),
        {CATEGORY_DETAIL: found.category.value},
        type=type(error).__name__,
        non_retryable=is_final,
        next_retry_delay=max(SHORTEST_DELAY, min(wait, _LONGEST)) if wait is not None and not is_final else None,
    )


_LONGEST: Final = timedelta(minutes=10)
