"""The console as a program: `python -m console`."""

import asyncio
import os
import sys

from console.server import serve
from redrive.errors import RedriveError
from redrive.logs import configure_logging, get_logger
from redrive.redaction import Redactor
from redrive.settings import read_settings

log = get_logger(__name__)


def main() -> None:
    """Run the console."""
    code = 0
    configure_logging()
    try:
        settings = read_settings()
        configure_logging(settings.log_level, settings.log_format, Redactor(settings.redacted_keys))
        asyncio.run(serve(settings))
    except RedriveError as error:
        log.error("console.not_started", error=str(error), code=error.code)
        code = 1
    # Interpreter shutdown with Temporal's native threads alive can crash; there is nothing left to clean up.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
