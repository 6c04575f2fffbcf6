import contextlib
import socket
from collections.abc import Iterator

import pytest

from redrive.errors import StackError
from redrive.starter.stack.ports import LOOPBACK, reserve


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        yield listener.getsockname()[1]


def test_preferred_port_that_is_taken_gives_the_next_free_one(taken_port: int) -> None:
    """A server whose usual port is in use gets another one."""
    reservation = reserve("a test", asked=None, preferred=taken_port)
    with contextlib.closing(reservation):
        assert reservation.number > taken_port


def test_asked_port_that_is_taken_is_refused(taken_port: int) -> None:
    """A port that the user named is never swapped for another."""
    with pytest.raises(StackError, match=f"port {taken_port} for the database is taken"):
        reserve("the database", asked=taken_port, preferred=1)


@pytest.mark.parametrize("number", [-1, 70_000])
def test_asked_port_that_cannot_be_is_refused(number: int) -> None:
    """A number that is no port gives the same sentence, not a traceback."""
    with pytest.raises(StackError, match=f"port {number} for a test is taken"):
        reserve("a test", asked=number, preferred=1)


def test_reserved_port_is_not_given_to_another_stack(taken_port: int) -> None:
    """Two stacks that start at once get different ports, although no server listens yet."""
    first = reserve("a test", asked=None, preferred=taken_port)
    with contextlib.closing(first), contextlib.closing(reserve("a test", asked=None, preferred=taken_port)) as second:
        assert second.number != first.number


def test_closed_reservation_frees_the_port(taken_port: int) -> None:
    """After a stack has stopped, the next one gets the same port."""
    first = reserve("a test", asked=None, preferred=taken_port)
    first.close()
    with contextlib.closing(reserve("a test", asked=first.number, preferred=1)) as second:
        assert second.number == first.number
