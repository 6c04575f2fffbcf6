"""The `redrive` command: puts the words together and turns errors into sentences and exit codes."""

import importlib.metadata
import sys
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from redrive.errors import RedriveError, RunCanceled, RunFailed
from redrive.logs import configure_logging
from redrive.program import leave
from redrive.tracing import start_tracing
from starter.errors import RunParked, WrongUsage
from starter.terminal import errors

HELP = """Module runs on Temporal that are never lost.

Start here: `redrive demo` shows the whole thing in under a minute. Then `redrive up` in one terminal, and in another

`redrive run start hello --payload '{"name": "Ada"}' --wait`

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 the run that was waited for FAILED, 4 it was CANCELED,
5 it is parked: a step of it is a dead letter.
"""
EXIT_CODES: dict[type[RedriveError], int] = {WrongUsage: 2, RunFailed: 3, RunCanceled: 4, RunParked: 5}
INTERRUPTED = 130
# Commands that serve have a name of their own in traces.
SERVERS = {"worker", "bridge", "console"}

app = App(
    name="redrive",
    help=HELP,
    version=importlib.metadata.version("redrive"),
    help_format="markdown",
    error_console=errors,
    # Flags have no `--no-…` twin, and `[default: False]` says nothing.
    default_parameter=Parameter(negative="", show_default=lambda value: value or None),
)
# By name: a command imports its own code only; the worker's, for one, takes a quarter of a second.
app.command("starter.commands.demo:demo")
app.command("starter.commands.up:up")
app.command("starter.commands.runs:app", name="run")
app.command("starter.commands.dead_letters:app", name="dlq")
app.command("starter.commands.keys:app", name="keys")
app.command("starter.commands.bulk:app", name="bulk")
app.command("starter.commands.catalog:modules")
app.command("starter.commands.worker:worker")
app.command("starter.commands.bridge:app", name="bridge")
app.command("starter.commands.console:console")
app.command("starter.commands.tokens:app", name="tokens")
app.command("starter.commands.members:app", name="members")
app.command("starter.commands.database:migrate")
app.command("starter.commands.audit:app", name="audit")
app.command("starter.commands.reconcile:reconcile")
app.command("starter.commands.purge:purge")
app.command("starter.commands.events:app", name="events")
app.command("starter.commands.messages:app", name="messages")


def main() -> NoReturn:
    """Run the command line."""
    configure_logging("warning", "auto")
    leave(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        start_tracing(f"redrive-{words[0]}" if words and words[0] in SERVERS else "redrive")
        code: Any = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except RedriveError as error:
        return _refuse(f"{error} [{error.code}]", EXIT_CODES.get(type(error), 1))
    except CycloptsError as error:
        return _refuse(_usage(error), 2)
    except BrokenPipeError:
        # The reader, `head` perhaps, has seen enough.
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return code if isinstance(code, int) else 0


def _usage(error: CycloptsError) -> str:
    error.verbose = False
    command = " ".join(["redrive", *(error.command_chain or ())])
    unused = error.unused_tokens if isinstance(error, UnusedCliTokensError) else None
    problem = f"one word too many: {' '.join(unused)}" if unused else str(error).strip()
    return f"{problem}\nTry `{command} --help`."


def _refuse(sentence: str, code: int) -> int:
    errors.print(f"redrive: {sentence}", markup=False)
    return code


if __name__ == "__main__":
    main()
