"""The HTTP server of the SDK's tests, for the tests of runs."""

from tests.unit.redrive.conftest import server

__all__ = ["server"]
