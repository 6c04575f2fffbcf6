"""The console as a process: the application on a port, until SIGTERM or Ctrl-C."""

from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI

from redrive.bridges.events.settings import EventSettings
from redrive.console.app import build_app
from redrive.console.request_limits import guarded
from redrive.errors import InvalidInput, Unavailable
from redrive.logs import get_logger
from redrive.outbox.settings import OutboxSettings
from redrive.processes.program import run_program
from redrive.settings import Settings, read_environment

# Streams end by themselves when the server stops; this is for clients that keep the connection open.
_GRACE: Final = 5
_log = get_logger(__name__)


class _Server(uvicorn.Server):
    """Tell the open streams about a stop: otherwise the server would wait for them."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        app = self.config.app
        if isinstance(app, FastAPI):
            app.state.app_state.stopping.set()
        # A second signal, on which uvicorn would exit at once, and its re-raising of signals are not wanted.
        self.should_exit = True


async def serve(settings: Settings, events: EventSettings, outbox: OutboxSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    host, port = _address(settings.console_address)
    app = build_app(settings, events, outbox)
    config = uvicorn.Config(
        app,
        http=guarded(settings.header_timeout, settings.max_connections, app.state.app_state.metrics),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE,
    )
    server = _Server(config)
    _log.info("console.started", url=settings.console_url or f"http://{settings.console_address}")
    try:
        await server.serve()
    except SystemExit:
        raise Unavailable(
            f"REDRIVE_CONSOLE_ADDRESS={settings.console_address!r}: cannot listen there; take another port"
        ) from None
    _log.info("console.stopped")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(f"REDRIVE_CONSOLE_ADDRESS={text!r}: must read like 127.0.0.1:8300")
    return host.strip("[]"), int(port)


async def _serve(settings: Settings) -> None:
    await serve(settings, read_environment(EventSettings), read_environment(OutboxSettings))


def main() -> None:
    """Run the console."""
    run_program("console", _serve, failed="console.not_started")


if __name__ == "__main__":
    main()
