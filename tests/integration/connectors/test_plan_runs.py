"""A run with a coding agent: attempts that break at any point make one prompt and one artifact."""

import asyncio
from collections import Counter

from pydantic import SecretStr

from redrive import Category, RunStatus
from redrive.settings import ServiceSettings
from tests.conftest import WorkerFactory
from tests.integration.runs.samples import run_until_settled
from tests.unit.connectors.gitea_server import TOKEN, GiteaServer
from tests.unit.connectors.opencode_server import PASSWORD, Found, OpenCodeServer, api_error
from tests.unit.redrive.conftest import Received, Server, reply

GOAL = {"user": "ann", "repository": "work", "goal": "a lamp shop"}


async def test_retries_make_one_prompt_and_one_artifact(worker: WorkerFactory, server: Server) -> None:
    """Answers of every call are lost once, and the agent fails once: the plan is asked for and stored once."""
    agent, gitea = OpenCodeServer(), GiteaServer()
    gitea.users["ann"] = {"id": 2, "login": "ann", "email": "a@b"}
    gitea.repositories["ann/work"] = {"id": 1, "full_name": "ann/work"}
    outcomes: list[str | dict[str, object]] = [api_error(529, retryable=True), "# Plan\n"]
    agent.agent = lambda _prompt: outcomes.pop(0)
    seen: Counter[str] = Counter()

    def lose_once(request: Received) -> Found | None:
        """The work is done, but its answer is lost on the way: once for each path that writes."""
        if request.method == "GET":
            return None
        seen[request.target] += 1
        return (502, None) if seen[request.target] == 1 else None

    agent.after = lose_once

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        if not request.target.startswith("/api/"):
            await agent.answer(request, writer)
            return
        await gitea.answer(request, _Cut(writer) if lose_once(request) else writer)  # type: ignore[arg-type]

    server.otherwise = answer
    services = {
        "opencode": ServiceSettings(base_url=server.url, token=SecretStr(PASSWORD)),
        "gitea": ServiceSettings(base_url=server.url, token=SecretStr(TOKEN)),
    }
    async with worker(services=services) as running:
        view = await run_until_settled(running.redrive, "plan-workspace", GOAL)
        result = await running.redrive.result(view.run_id)
    assert view.status is RunStatus.SUCCESS
    attempts = [[attempt.category for attempt in step.attempts] for step in view.steps]
    # The lost answers to the session and to the prompt, whose agent had failed; the lost answer to the file.
    assert attempts == [[Category.PROVIDER_5XX] * 2, [Category.NETWORK]]
    assert len(agent.sessions) == 1
    [session] = agent.messages.values()
    assert len([message for message in session if message["info"]["role"] == "user"]) == 1
    assert len(agent.worked) == 2  # the failed one and the good one
    assert {key[2]: content for key, content in gitea.files.items()} == {result.output["path"]: b"# Plan\n"}


class _Cut:
    """A connection that takes what is written to it and is cut instead."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, _data: bytes) -> None:
        """Cut the connection."""
        self._writer.transport.abort()


async def test_services_are_checked(worker: WorkerFactory, server: Server) -> None:
    """A service that is down is a part of the result; one that is not configured is a dead letter that names it."""
    server.on("/api/healthz", reply(200, {"status": "pass"}))
    services = {
        "gitea": ServiceSettings(base_url=server.url),
        "gone": ServiceSettings(base_url="http://127.0.0.1:1"),
    }
    async with worker(services=services) as running:
        good = {"services": {"gitea": "/api/healthz", "gone": "/"}}
        view = await run_until_settled(running.redrive, "check-services", good)
        result = await running.redrive.result(view.run_id)
        wrong = await run_until_settled(running.redrive, "check-services", {"services": {"mail": "/"}})
    probes = result.output["probes"]
    assert {name: probe["status"] for name, probe in probes.items()} == {"gitea": "available", "gone": "unavailable"}
    assert wrong.status is RunStatus.DLQ_PENDING
    assert "no service 'mail' is configured" in str(wrong.error)
