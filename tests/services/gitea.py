"""A real Gitea on a free port of this machine, with an administrator's token. Its state is gone when it ends."""

import asyncio
import contextlib
import secrets
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from getpass import getuser
from pathlib import Path

from redrive.connectors.gitea import Gitea
from redrive.errors import StackError
from redrive.http import ServiceClient, new_http_client
from tests.services import programs
from tests.services.processes import free_port, start, stop

ADMINISTRATOR = "root-admin"
# What docs/connectors/gitea.md says that a token needs.
SCOPES = "write:admin,write:repository,read:user"
START = timedelta(seconds=180)


@dataclass(frozen=True)
class GiteaPlace:
    """Where the server is, and a token of its administrator."""

    url: str
    token: str


@contextlib.asynccontextmanager
async def running_gitea(made: programs.Gitea, state: Path) -> AsyncIterator[GiteaPlace]:
    """Serve for the length of a block."""
    port = free_port()
    settings = state / "app.ini"
    settings.write_text(_ini(_settings(made, state, port)))
    await _gitea(made, settings, "migrate")
    password = secrets.token_urlsafe(16)
    user = ["--username", ADMINISTRATOR]
    about = ["--email", "root@example.com", "--password", password, "--must-change-password=false"]
    await _gitea(made, settings, "admin", "user", "create", "--admin", *user, *about)
    named = ["--token-name", "tests", "--scopes", SCOPES, "--raw"]
    told = await _gitea(made, settings, "admin", "user", "generate-access-token", *user, *named)
    place = GiteaPlace(f"http://127.0.0.1:{port}", told.split()[-1])
    process = await start([str(made.program), "web", "--config", str(settings)], state / "gitea.log")
    try:
        async with new_http_client() as http:
            await Gitea(ServiceClient(http, base_url=place.url)).wait_ready(START)
        yield place
    finally:
        await stop(process)


def _settings(made: programs.Gitea, state: Path, port: int) -> Mapping[str, Mapping[str, object]]:
    return {
        "": {
            "RUN_MODE": "prod",
            "RUN_USER": getuser(),
            "WORK_PATH": state,
            # A server of tests, on loopback: CI runs as root.
            "I_AM_BEING_UNSAFE_RUNNING_AS_ROOT": "true",
        },
        "server": {
            "HTTP_ADDR": "127.0.0.1",
            "HTTP_PORT": port,
            "ROOT_URL": f"http://127.0.0.1:{port}/",
            "STATIC_ROOT_PATH": made.source,
            "DISABLE_SSH": "true",
            "OFFLINE_MODE": "true",
        },
        "database": {"DB_TYPE": "sqlite3", "PATH": state / "gitea.db"},
        "security": {"INSTALL_LOCK": "true", "SECRET_KEY": secrets.token_hex(16)},
        "log": {"LEVEL": "warn"},
    }


def _ini(sections: Mapping[str, Mapping[str, object]]) -> str:
    lines = [
        line
        for name, values in sections.items()
        for line in ([f"[{name}]"] if name else []) + [f"{key} = {value}" for key, value in values.items()]
    ]
    return "\n".join(lines) + "\n"


async def _gitea(made: programs.Gitea, settings: Path, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(made.program), *words, "--config", str(settings), stdout=PIPE, stderr=PIPE
    )
    told, problem = await process.communicate()
    if process.returncode:
        raise StackError(f"gitea {words[0]} failed: {(told + problem).decode()[-1000:]}")
    return told.decode()
