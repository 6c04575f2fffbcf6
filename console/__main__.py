"""The console as a program: `python -m console`."""

from bridges.event_settings import EventSettings
from console.server import serve
from redrive.program import run_program
from redrive.settings import Settings, read_environment


async def _serve(settings: Settings) -> None:
    await serve(settings, read_environment(EventSettings))


def main() -> None:
    """Run the console."""
    run_program("console", _serve, failed="console.not_started")


if __name__ == "__main__":
    main()
