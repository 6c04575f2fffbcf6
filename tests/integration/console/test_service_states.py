"""How the services do that steps call: on the overview and by `redrive services`."""

from pathlib import Path

from pydantic import SecretStr
from temporalio.client import Client

from redrive import Registry
from redrive.access import Role
from redrive.console.app import build_app
from redrive.settings import ServiceSettings, Settings
from redrive.worker import running_worker
from redrive.worker_queries import service_states
from tests.integration.cli.command import CommandLine
from tests.integration.console.conftest import MakeToken, client_of
from tests.unit.redrive.conftest import Server, reply, server

__all__ = ["server"]
TOKEN = "Zq-the-token-123456"


async def test_services_are_shown_as_a_worker_finds_them(
    settings: Settings, temporal: Client, server: Server, make_token: MakeToken, tmp_path: Path
) -> None:
    """Each state is a row with its reason; one without a health path is left out; a service is asked once."""
    server.on("/good", reply(200, {"status": "pass"}))
    server.on("/slow", reply(429))
    server.on("/denied", reply(401, {"error": f"token {TOKEN} is unknown"}))
    chosen = settings.model_copy(
        update={
            "services": {
                "bank": ServiceSettings(base_url=server.url, health="/good"),
                "mail": ServiceSettings(base_url=server.url, health="/slow"),
                "gone": ServiceSettings(base_url="http://127.0.0.1:1", health="/"),
                "wiki": ServiceSettings(base_url=server.url, token=SecretStr(TOKEN), health="/denied"),
                "quiet": ServiceSettings(base_url=server.url),
            }
        }
    )
    app = build_app(settings)
    async with running_worker(chosen, Registry()), app.router.lifespan_context(app):
        found = await service_states(temporal, settings.task_queue)
        async with client_of(app, await make_token(Role.VIEWER)) as viewer:
            page = (await viewer.get("/overview/services")).text
            listed = (await viewer.get("/api/v1/services")).json()["services"]
        command = CommandLine(
            tmp_path, TEMPORAL_ADDRESS=chosen.temporal_address or "", REDRIVE_TASK_QUEUE=chosen.task_queue
        )
        said = await command("services")
        strangers = await _status_of_a_stranger(app)
    states = {state.name: state.status for state in found.services}
    assert states == {"bank": "available", "gone": "unavailable", "mail": "degraded", "wiki": "misconfigured"}
    for name, status in states.items():
        assert f"<td>{name}</td>" in page
        assert f">{status}</span>" in page
        assert any(name in line and status in line for line in said.out.splitlines()), said.out + said.err
    assert {row["name"]: row["status"] for row in listed} == states
    assert TOKEN not in page + said.out + found.model_dump_json()
    assert strangers == (401, 401)
    assert [request.target for request in server.received].count("/good") <= 2


async def _status_of_a_stranger(app: object) -> tuple[int, int]:
    async with client_of(app) as stranger:  # type: ignore[arg-type]
        page, listed = await stranger.get("/overview/services"), await stranger.get("/api/v1/services")
    return page.status_code, listed.status_code


async def test_overview_does_without_services(settings: Settings, make_token: MakeToken) -> None:
    """With no service that has a health path, there is nothing to show."""
    app = build_app(settings)
    async with (
        running_worker(settings, Registry()),
        app.router.lifespan_context(app),
        client_of(app, await make_token(Role.VIEWER)) as viewer,
    ):
        answer = await viewer.get("/overview/services")
    assert (answer.status_code, "<table" in answer.text) == (200, False)
