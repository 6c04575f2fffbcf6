"""Probes: an unavailable service is a result, a wrong configuration is an error."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from redrive.categories import Category
from redrive.connectors.gitea import Gitea
from redrive.connectors.llm import Llm
from redrive.connectors.opencode import OpenCode
from redrive.connectors.probes import probe
from redrive.errors import Terminal
from tests.unit.connectors.conftest import ClientFactory
from tests.unit.connectors.gitea_server import TOKEN, GiteaServer
from tests.unit.connectors.opencode_server import PASSWORD, OpenCodeServer
from tests.unit.redrive.conftest import Answer, Server, hang, reply, reset


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (reply(200, {"status": "pass"}), "available", "it answered 200"),
        (reply(204), "available", "it answered 204"),
        (reply(200, b"<html>"), "available", "it answered 200"),
        (reply(200, {"status": "UP"}), "available", "it answered 200"),
        (reply(200, {"status": "warn"}), "degraded", "'warn'"),
        (reply(200, {"status": "DOWN"}), "unavailable", "'down'"),
        (reply(200, {"healthy": False}), "unavailable", "'false'"),
        (reply(429), "degraded", "answered 429"),
        (reply(503, {"status": "fail"}), "unavailable", "answered 503"),
        (reset, "unavailable", "failed"),
        (hang, "unavailable", "gave no full answer in 0.3 s"),
    ],
)
async def test_state_of_a_service_is_told(
    client: ClientFactory, server: Server, answer: Answer, status: str, reason: str
) -> None:
    """Each answer, and none, is a state with its reason and latency."""
    server.on("/health", answer)
    # A loaded machine may take long for any answer; only the one that hangs is waited for.
    found = await probe(client(), path="/health", timeout=timedelta(seconds=0.3 if answer is hang else 30))
    assert found.status == status
    assert reason in found.reason
    assert found.latency_ms > 0


async def test_slow_service_is_degraded(client: ClientFactory, server: Server) -> None:
    """An answer that comes late is an answer, but not a good one."""
    server.on("/", reply(200))
    found = await probe(client(), slow=timedelta(0))
    assert (found.status, found.http_status) == ("degraded", 200)


async def test_closed_port_is_unavailable(client: ClientFactory) -> None:
    """Nobody listens there: that may change."""
    found = await probe(client(base_url="http://127.0.0.1:1"))
    assert (found.status, found.http_status) == ("unavailable", None)


@pytest.mark.parametrize("answer", [reply(401), reply(403), reply(404), reply(302, location="https://other.example/")])
async def test_wrong_configuration_is_an_error(client: ClientFactory, server: Server, answer: Answer) -> None:
    """What no waiting changes is raised, and says where to look."""
    server.on("/", answer)
    with pytest.raises(Terminal, match="REDRIVE_SERVICES") as caught:
        await probe(client())
    assert caught.value.category is Category.MISSING_CONFIG


@pytest.mark.parametrize("change", [{"base_url": "no address"}, {"base_url": None}], ids=["no URL", "none"])
async def test_address_that_is_none_is_an_error(client: ClientFactory, change: dict[str, Any]) -> None:
    """Without an address there is nothing to ask."""
    with pytest.raises(Terminal):
        await probe(client(**change))


async def test_unknown_service_is_an_error(client: ClientFactory) -> None:
    """A name that is not configured is told with those that are."""
    with pytest.raises(Terminal, match="no service 'mail' is configured"):
        await probe(client().service("mail"))


async def test_connectors_know_where_to_ask(client: ClientFactory, server: Server) -> None:
    """Each connector asks its service's own health endpoint, and signs in as it has to."""
    server.otherwise = GiteaServer().answer
    assert (await Gitea(client(token=SecretStr(TOKEN))).probe()).status == "available"
    assert (await Gitea(client(token=None)).probe()).status == "available"
    with pytest.raises(Terminal, match="answered 401"):
        await Gitea(client()).probe()
    server.otherwise = OpenCodeServer().answer
    assert (await OpenCode(client(token=SecretStr(PASSWORD))).probe()).status == "available"
    with pytest.raises(Terminal, match="answered 401"):
        await OpenCode(client()).probe()
    server.otherwise = None
    server.on("/models", reply(200, {"data": []}))
    assert (await Llm(client(), model="m", api="anthropic").probe()).status == "available"
    assert server.received[-1].headers["anthropic-version"] == "2023-06-01"
