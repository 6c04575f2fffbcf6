"""Resources: how they are declared, started and stopped, and how a module gets one."""

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from redrive import ModuleContext, Registry, Terminal
from redrive.errors import RegistrationError
from redrive.resources import started


async def test_resources_start_in_order_and_stop_in_reverse() -> None:
    """Those that block do it beside the loop."""
    registry, told = Registry(), []

    @registry.resource
    async def first() -> AsyncIterator[str]:
        told.append("first starts")
        yield "one"
        told.append("first stops")

    @registry.resource
    def second() -> Iterator[int]:
        told.append(f"second starts {threading.current_thread() is threading.main_thread()}")
        yield 2
        told.append("second stops")

    async with started(registry.resources) as values:
        assert (values[first], values[second]) == ("one", 2)
    assert told == ["first starts", "second starts False", "second stops", "first stops"]


async def test_a_resource_that_does_not_start_is_named() -> None:
    """What started before it is stopped."""
    registry, told = Registry(), []

    @registry.resource
    async def good() -> AsyncIterator[int]:
        yield 1
        told.append("stopped")

    @registry.resource
    async def bad() -> AsyncIterator[int]:
        raise ConnectionRefusedError("nobody listens")
        yield 1

    with pytest.raises(RegistrationError, match=r"\.bad\) did not start: ConnectionRefusedError: nobody listens"):
        async with started(registry.resources):
            pytest.fail("it did not start")
    assert told == ["stopped"]


async def test_a_resource_that_does_not_stop_keeps_no_other_from_stopping() -> None:
    """The failure is logged."""
    registry, told = Registry(), []

    @registry.resource
    async def good() -> AsyncIterator[int]:
        yield 1
        told.append("stopped")

    @registry.resource
    def bad() -> Iterator[int]:
        yield 1
        raise ValueError("stuck")

    async with started(registry.resources):
        pass
    assert told == ["stopped"]


def returns() -> int:
    """Not a generator."""
    return 1


def takes(name: str) -> Iterator[str]:
    """Has a parameter."""
    yield name


@pytest.mark.parametrize(("function", "problem"), [(returns, "not a generator"), (takes, "takes parameters")])
def test_a_wrong_resource_is_refused_by_name(function: Any, problem: str) -> None:
    """The refusal names the function and says how to write it."""
    with pytest.raises(RegistrationError, match=rf"resource \(.*\.{function.__name__}\): {problem}"):
        Registry().resource(function)


async def test_a_resource_that_the_worker_has_not_started_is_refused() -> None:
    """A module that asks for one of another registry is told which."""

    @Registry().resource
    def other() -> Iterator[int]:
        yield 1

    ctx = object.__new__(ModuleContext)
    object.__setattr__(ctx, "resources", {})
    with pytest.raises(Terminal, match=r"\.other\) is not started"):
        ctx.resource(other)
