"""All four services, each on a port of its own. `python -m redrive.examples.growth.services.running` serves them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from redrive.examples.growth.services import gitea, interview, llm, opencode
from redrive.examples.growth.services.gitea import Gitea
from redrive.examples.growth.services.interview import Interview
from redrive.examples.growth.services.llm import LanguageModel
from redrive.examples.growth.services.opencode import OpenCode
from redrive.examples.site import Answer, Request, Site


class StandIn(Protocol):
    """A service in memory."""

    def respond(self, request: Request) -> tuple[int, Any]:
        """Answer any request with a status and a body."""
        ...


class Place:
    """A service at its address. What `lose` selects is done, but its answer is lost: the caller sees a 502."""

    def __init__(self, service: StandIn) -> None:
        self.lose: Callable[[Request], bool] = lambda _request: False
        self.site = Site(self._answer)
        self._service = service

    def _answer(self, request: Request) -> Answer:
        status, body = self._service.respond(request)
        return Answer(502, {"error": "the answer was lost"}) if self.lose(request) else Answer(status, body)


@dataclass(frozen=True)
class Services:
    """The four services and where they are."""

    interview: Interview = field(default_factory=Interview)
    llm: LanguageModel = field(default_factory=LanguageModel)
    opencode: OpenCode = field(default_factory=OpenCode)
    gitea: Gitea = field(default_factory=Gitea)
    places: dict[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        standing: dict[str, StandIn] = {
            "interview": self.interview,
            "llm": self.llm,
            "opencode": self.opencode,
            "gitea": self.gitea,
        }
        self.places.update({name: Place(service) for name, service in standing.items()})

    @property
    def settings(self) -> dict[str, dict[str, str]]:
        """The value of REDRIVE_SERVICES."""
        tokens = {"interview": interview.TOKEN, "llm": llm.TOKEN, "opencode": opencode.PASSWORD, "gitea": gitea.TOKEN}
        base = {name: place.site.url for name, place in self.places.items()}
        base["llm"] += "/v1"
        return {name: {"base_url": url, "token": tokens[name]} for name, url in base.items()}


@contextlib.asynccontextmanager
async def running_services() -> AsyncIterator[Services]:
    """Serve all four for the length of a block."""
    services = Services()
    try:
        for place in services.places.values():
            await place.site.start()
        yield services
    finally:
        for place in services.places.values():
            await place.site.stop()


async def main() -> None:
    """Serve until Ctrl-C, and print the setting that names the services."""
    async with running_services() as services:
        print(f"export REDRIVE_SERVICES='{json.dumps(services.settings)}'", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
