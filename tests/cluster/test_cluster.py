"""A small part of `make cluster`: a cluster comes up by the compose file's own scripts, and loses nothing."""

import pytest

from redrive.errors import StackError
from tests.cluster.chaos import run_chaos
from tests.cluster.cluster import running_cluster
from tests.cluster.server_build import find_go

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

RUNS = 100


async def test_runs_survive_the_loss_of_each_part() -> None:
    """The scripts run twice without harm; then no run is lost or doubled while nodes, links and PostgreSQL fail."""
    try:
        find_go()
    except StackError as error:
        pytest.fail(str(error))
    async with running_cluster() as cluster:
        await cluster.run_schema_script()
        await cluster.run_namespace_script()
        assert await run_chaos(cluster, RUNS) == []
