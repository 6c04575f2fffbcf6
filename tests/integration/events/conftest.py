"""Brokers of these tests' own."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.events.valkey import Valkey, running_valkey


@pytest.fixture(scope="module")
async def valkey(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Valkey]:
    """A real Redis server for the tests of a file."""
    async with running_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server
