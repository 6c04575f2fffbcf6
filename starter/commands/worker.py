"""`redrive worker`: a worker alone."""

from typing import Annotated

from cyclopts import Parameter

from redrive.logs import configure_logging
from redrive.settings import Settings
from worker import serve


async def worker(
    *, modules: Annotated[str | None, Parameter(help="Python modules to import, with commas.")] = None
) -> None:
    """Run a worker until SIGTERM or Ctrl-C. Any number may run side by side.

    Example: `redrive worker --modules my_modules`. Without the option, REDRIVE_MODULES says what to import.
    """
    settings = Settings() if modules is None else Settings(modules=tuple(modules.split(",")))
    configure_logging(settings.log_level, settings.log_format)
    await serve(settings)
