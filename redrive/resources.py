"""Resources: what modules share for as long as a worker runs, such as a connection pool or a client of a service.

A resource is a generator function that yields once. It starts before the worker takes work, and stops after the last
step has ended; the last one that started stops first.
"""

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redrive.errors import RegistrationError
from redrive.logs import get_logger

T = TypeVar("T")
ResourceFunction = Callable[[], AsyncIterator[T] | Iterator[T]]
Started = Mapping["Resource[Any]", Any]

log = get_logger(__name__)


@dataclass(frozen=True, eq=False)
class Resource(Generic[T]):
    """A shared value with a start and a stop. A module gets it by `ctx.resource(…)`."""

    function: ResourceFunction[T]

    @property
    def origin(self) -> str:
        """Where it is defined, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def open(self) -> AbstractAsyncContextManager[T]:
        """Start it for the length of a block, for example in a test."""
        if inspect.isasyncgenfunction(self.function):
            return contextlib.asynccontextmanager(self.function)()
        return _in_threads(contextlib.contextmanager(self.function)())  # type: ignore[arg-type]  # checked when declared


def declared(function: ResourceFunction[T]) -> Resource[T]:
    """Make a resource of a function, or say how to write one."""
    resource = Resource(function)
    if not (inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)):
        raise RegistrationError(
            f"resource ({resource.origin}): not a generator; write `async def pool() -> AsyncIterator[Pool]` with one "
            "`yield`: what is before it starts the resource, what is after it stops it"
        )
    if inspect.signature(function).parameters:
        raise RegistrationError(f"resource ({resource.origin}): takes parameters; it is called without any")
    return resource


@contextlib.asynccontextmanager
async def _in_threads(manager: contextlib.AbstractContextManager[T]) -> AsyncIterator[T]:
    """Start and stop what blocks beside the loop."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def started(resources: Iterable[Resource[Any]]) -> AsyncIterator[Started]:
    """Start all of them, one after the other, for the length of a block. Raises RegistrationError if one does not."""
    async with contextlib.AsyncExitStack() as opened:
        values: dict[Resource[Any], Any] = {}
        for resource in resources:
            began, manager = time.monotonic(), resource.open()
            try:
                values[resource] = await manager.__aenter__()
            except Exception as error:
                raise RegistrationError(
                    f"resource ({resource.origin}) did not start: {type(error).__name__}: {error}"
                ) from error
            opened.push_async_callback(_stop, resource, manager)
            took = round((time.monotonic() - began) * 1000, 1)
            log.info("worker.resource_started", resource=resource.origin, latency_ms=took)
        yield values


async def _stop(resource: Resource[Any], manager: AbstractAsyncContextManager[Any]) -> None:
    """Stop one. If that fails, the others are still stopped."""
    try:
        await manager.__aexit__(None, None, None)
    except Exception as error:
        log.warning(
            "worker.resource_not_stopped", resource=resource.origin, error_type=type(error).__name__, error=str(error)
        )
