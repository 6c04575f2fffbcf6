"""The `redrive` command: puts the words together and turns errors into sentences and exit codes."""

import os
import sys
from typing import Any, NoReturn

from cyclopts import App
from pydantic import ValidationError
from rich.console import Console

from redrive.documents import validation_sentence
from redrive.errors import RedriveError, RunCanceled, RunFailed
from redrive.logs import configure_logging
from starter.commands import catalog, database, demo, runs, up, worker

HELP = """Module runs on Temporal that are never lost.

Start here: `redrive demo` shows the whole thing in under a minute. `redrive up` starts a stack of your own;
`redrive run start` starts a run on it.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 the run that was waited for FAILED, 4 it was CANCELED.
"""
EXIT_CODES: dict[type[RedriveError], int] = {RunFailed: 3, RunCanceled: 4}

errors = Console(stderr=True, highlight=False)
app = App(name="redrive", help=HELP, version="0.1.0", help_format="markdown", error_console=errors)
app.command(demo.demo)
app.command(up.up)
app.command(runs.app)
app.command(catalog.modules)
app.command(worker.worker)
app.command(database.migrate)


def main() -> NoReturn:
    """Run the command line."""
    configure_logging("warning", "auto")
    code = run(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter shutdown with Temporal's native threads alive can crash; everything is closed by now.
    os._exit(code)


def run(words: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code: Any = app(words, exit_on_error=False, print_error=True, result_action="return_value")
    except RedriveError as error:
        return _refuse(f"{error} [{error.code}]", EXIT_CODES.get(type(error), 1))
    except ValidationError as error:
        return _refuse(f"a setting is wrong: {validation_sentence(error)} [invalid_settings]", 1)
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except Exception as error:
        if type(error).__module__.startswith("cyclopts"):
            return 2
        raise
    return code if isinstance(code, int) else 0


def _refuse(sentence: str, code: int) -> int:
    errors.print(f"redrive: {sentence}", markup=False, soft_wrap=True)
    return code
