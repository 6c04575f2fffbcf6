import json
from pathlib import Path

import pytest
import yaml

from redrive.contracts import LABELS_ATTRIBUTE, SearchAttribute
from redrive.starter.stack.temporal_server import DYNAMIC_CONFIG, TemporalServer, find_temporal

ROOT = Path(__file__).parents[3]


@pytest.fixture
def server() -> TemporalServer:
    return TemporalServer(Path("/bin/temporal"), Path("/state/temporal.db"), port=7300, web_ui_port=8300)


def _values(server: TemporalServer, option: str) -> list[str]:
    words = server.command
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def test_server_listens_on_loopback_alone(server: TemporalServer) -> None:
    """The dev server has no authentication, so nobody outside this machine may reach it."""
    assert _values(server, "--ip") == ["127.0.0.1"]
    assert (server.address, server.web_ui) == ("127.0.0.1:7300", "http://127.0.0.1:8300")
    assert (_values(server, "--port"), _values(server, "--ui-port")) == (["7300"], ["8300"])


def test_server_keeps_its_data_in_a_file_with_a_write_ahead_log(server: TemporalServer) -> None:
    """Runs survive a restart, and the database is quick."""
    assert _values(server, "--db-filename") == ["/state/temporal.db"]
    assert _values(server, "--sqlite-pragma") == ["journal_mode=wal", "synchronous=1"]


def test_server_serves_short_delays(server: TemporalServer) -> None:
    """A retry after 250 ms is not served after a second."""
    assert 'history.timerProcessorMaxTimeShift="20ms"' in _values(server, "--dynamic-config-value")


def test_embedded_server_and_cluster_have_the_same_dynamic_configuration(server: TemporalServer) -> None:
    """A value that is measured here is the one that a cluster gets; only limits by PostgreSQL's connections differ."""
    deployed = yaml.safe_load((ROOT / "deploy/temporal/dynamic-config.yaml").read_text())
    shared = {name: entries[0]["value"] for name, entries in deployed.items() if not name.endswith("WorkerCount")}
    assert shared == DYNAMIC_CONFIG
    assert all(len(entries) == 1 for entries in deployed.values())
    given = dict(value.split("=", 1) for value in _values(server, "--dynamic-config-value"))
    assert {name: json.loads(value) for name, value in given.items()} == DYNAMIC_CONFIG


def test_server_reads_its_queues_without_a_beat(server: TemporalServer) -> None:
    """With the default of 20 reads a second, each workflow task waits up to 50 ms."""
    assert DYNAMIC_CONFIG["history.transferProcessorMaxPollRPS"] == 1000


def test_server_gives_out_tasks_by_turns(server: TemporalServer) -> None:
    """Tenants take turns, over a whole queue."""
    assert set(_values(server, "--dynamic-config-value")) >= {
        "matching.enableFairness=true",
        "matching.numTaskqueueReadPartitions=1",
        "matching.numTaskqueueWritePartitions=1",
    }


def test_server_registers_every_search_attribute(server: TemporalServer) -> None:
    """A run can set each search attribute that the contracts name."""
    keywords = [f"{name.value}=Keyword" for name in SearchAttribute]
    assert _values(server, "--search-attribute") == [*keywords, f"{LABELS_ATTRIBUTE}=KeywordList"]


def test_server_gets_nothing_of_our_environment_but_how_much_memory_it_may_use(
    server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our environment holds passwords."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://redrive:hunter2@127.0.0.1/redrive")
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("GOGC", "400")
    monkeypatch.delenv("GOMEMLIMIT", raising=False)
    assert server.program.environment == {"PATH": "/bin", "HOME": "/state", "GOGC": "400"}


def test_temporal_of_this_environment_is_found() -> None:
    """The command comes with the wheel."""
    assert find_temporal().name == "temporal"


async def test_server_that_does_not_listen_is_not_ready(server: TemporalServer) -> None:
    """ApprovalRequest a server that is not there yet is no error."""
    assert not await server.is_ready()
