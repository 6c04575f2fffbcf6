"""The HTTP server of the SDK's tests, and the examples' own pipelines."""

import pytest

from redrive import Registry
from redrive.examples import feedback, health, plans, workspace
from redrive.modules import DEFAULT_REGISTRY
from tests.unit.redrive.conftest import server

__all__ = ["feedback", "health", "plans", "server", "workspace"]


@pytest.fixture
def registry() -> Registry:
    """A registry of the test's own, with the examples in it."""
    return Registry(dict(DEFAULT_REGISTRY.modules), dict(DEFAULT_REGISTRY.pipelines))
