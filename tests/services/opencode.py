"""A real OpenCode server on a free port of this machine, whose agent asks the model of these tests.

It reaches nothing else: its home is a directory of its own, and its proxy for the outside world refuses connections.
"""

import asyncio
import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from redrive.connectors.opencode import OpenCode
from redrive.errors import ServiceError, StackError
from redrive.http import ServiceClient, new_http_client
from tests.services.processes import free_port, start, stop

PASSWORD = "pw-Zq-real-1"
START = 120.0
_NOWHERE = "http://127.0.0.1:9"


@dataclass
class OpenCodeServer:
    """A server that can be killed and started again with the same state."""

    program: Path
    state: Path
    model_url: str
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        project = self.state / "project"
        project.mkdir(parents=True, exist_ok=True)
        command = [str(self.program), "serve", "--port", str(self.port)]
        self.process = await start(command, self._log, environment=self._environment(), folder=project)
        await self._wait(self.process)

    async def kill(self) -> None:
        """Kill it by signal 9."""
        if self.process:
            self.process.kill()
            await self.process.wait()

    async def stop(self) -> None:
        """End it."""
        if self.process:
            await stop(self.process)

    @property
    def _log(self) -> Path:
        return self.state / "opencode.log"

    def _environment(self) -> dict[str, str]:
        local = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Local",
            "options": {"baseURL": self.model_url, "apiKey": "sk-stand-in"},
            "models": {"stand-in": {"name": "Stand-in"}},
        }
        settings = {
            "model": "local/stand-in",
            "small_model": "local/stand-in",
            "enabled_providers": ["local"],
            "provider": {"local": local},
            "share": "disabled",
            "autoupdate": False,
        }
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.state),
            "OPENCODE_SERVER_PASSWORD": PASSWORD,
            "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "HTTP_PROXY": _NOWHERE,
            "HTTPS_PROXY": _NOWHERE,
            "NO_PROXY": "127.0.0.1",
            "NPM_CONFIG_REGISTRY": _NOWHERE,
        }

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        """Wait until it lists sessions: the first request of a directory makes it read its settings."""
        async with asyncio.timeout(START), new_http_client() as http:
            client = OpenCode(ServiceClient(http, base_url=self.url, token=SecretStr(PASSWORD)))
            while process.returncode is None:
                with contextlib.suppress(ServiceError):
                    await client.session("ready")
                    return
                await asyncio.sleep(0.5)
        raise StackError(f"OpenCode did not start: {self._log.read_text()[-1000:]}")
