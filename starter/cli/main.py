"""The `redrive` command: registers the commands and turns errors into sentences and exit codes."""

import gc
import inspect
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from redrive.errors import RedriveError, RunCanceled, RunFailed
from redrive.places import ENV_FILE
from redrive.processes.process_exit import leave
from redrive.starter.cli.errors import RunParked, WrongUsage
from redrive.starter.cli.terminal import errors
from redrive.tracing import start_tracing

HELP = """Module runs on Temporal that are never lost.

Start here: `redrive demo` shows the whole thing in under a minute. Then `redrive up` in one terminal, and in another

`redrive run start hello --payload '{"name": "Ada"}' --wait`

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 the run that was waited for FAILED, 4 it was CANCELED,
5 it is parked: a step of it is a dead letter.
"""
EXIT_CODES: dict[type[RedriveError], int] = {WrongUsage: 2, RunFailed: 3, RunCanceled: 4, RunParked: 5}
INTERRUPTED = 130
# So many new objects are looked at together: Python's default is 700, a hundred times while a client is imported.
GARBAGE = 50_000
# Commands that serve have their own name in traces.
SERVERS = {"worker", "bridge", "console"}


def _version() -> str:
    # Here, as all that only some commands need: each of these takes a tenth of the time that `--help` does.
    import importlib.metadata  # noqa: PLC0415

    return importlib.metadata.version("redrive")


app = App(
    name="redrive",
    help=HELP,
    version=_version,
    version_format="plaintext",
    help_format="markdown",
    error_console=errors,
    # Flags have no `--no-…` twin, and `[default: False]` says nothing.
    default_parameter=Parameter(negative="", show_default=lambda value: value or None),
)
# By name: a command imports only its own code; the worker's, for one, takes a quarter of a second. The help is what the
# list of commands says; a command's own `--help` has all of its docstring.
app.command(
    "redrive.starter.cli.demo:demo", help="Watch real runs on a real Temporal server: retries, a dead letter, a replay."
)
app.command("redrive.starter.cli.up:up", help="Start Temporal, PostgreSQL, a worker and the console, until Ctrl-C.")
app.command(
    "redrive.starter.cli.runs.app:app",
    name="run",
    help="Start runs, look at them, cancel them, let them continue.",
)
app.command(
    "redrive.starter.cli.schedules:app",
    name="schedule",
    help="Pipelines that run at set times: create schedules, pause them, catch up.",
)
app.command(
    "redrive.starter.cli.dead_letters.lists:app",
    name="dlq",
    help="Dead letters: look at them, replay them, close them.",
)
app.command(
    "redrive.starter.cli.keys:app",
    name="keys",
    help="Idempotency keys: show the run of one, or free it for another run.",
)
app.command(
    "redrive.starter.cli.bulk.app:app",
    name="bulk",
    help="Bulk operations: replay, resolve or discard many dead letters with one command.",
)
app.command(
    "redrive.starter.cli.runs.commands:modules",
    help="List the pipelines and modules that can be started, and their fields.",
)
app.command(
    "redrive.starter.cli.services:services",
    help="Show whether the services that steps call can be used.",
)
app.command("redrive.starter.cli.servers:worker", help="Run a worker, until SIGTERM or Ctrl-C.")
app.command(bridge := App(name="bridge", help="Take messages over from a broker, until SIGTERM or Ctrl-C."))
bridge.command("redrive.starter.cli.servers:redis", help="Make a run of every event on a Redis stream.")
bridge.command("redrive.starter.cli.servers:outbox", help="Make a run of every row of an outbox.")
bridge.command("redrive.starter.cli.servers:rabbitmq", help="Retry failed messages in the queue that they came from.")
app.command("redrive.starter.cli.servers:console", help="Serve the operators' API and pages, until SIGTERM or Ctrl-C.")
app.command("redrive.starter.cli.tokens:app", name="tokens", help="API tokens: create them, list them, revoke them.")
app.command(
    "redrive.starter.cli.members:app",
    name="members",
    help="People who sign in through the identity provider: give them a role, or end it.",
)
app.command("redrive.starter.cli.migrate:migrate", help="Bring the database's schema up to date.")
app.command(
    "redrive.starter.cli.audit:app", name="audit", help="The audit log: read it, and prove that it was not changed."
)
app.command(
    "redrive.starter.cli.reconcile:reconcile",
    help="Compare parked runs (Temporal) with open records (PostgreSQL), and repair them.",
)
app.command(
    "redrive.starter.cli.purge:purge", help="Delete closed records that are older than `REDRIVE_RETENTION` allows."
)
app.command(
    "redrive.starter.cli.events.lists:app",
    name="events",
    help="Events from brokers: look at them, replay them, discard dead ones.",
)
app.command(
    "redrive.starter.cli.outbox.lists:app",
    name="outbox",
    help="Rows of an outbox in your own database: install it, look at them, replay them.",
)
app.command(
    "redrive.starter.cli.messages:app",
    name="messages",
    help="Messages of RabbitMQ: send one to try it out; look at dead ones, replay or discard them.",
)
app.command(
    "redrive.starter.cli.completion:install",
    name="--install-completion",
    help="Install completion of commands and options for bash, zsh or fish.",
)


def main() -> NoReturn:
    """Run the command line."""
    leave(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        _show_whole_help(words)
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        if command.__module__.startswith("redrive."):
            _prepare(words[0])
        result: Any = command(*bound.args, **bound.kwargs)
        code = _awaited(result) if inspect.iscoroutine(result) else result
    except RedriveError as error:
        return _refuse(f"{error} [{error.code}]", EXIT_CODES.get(type(error), 1))
    except CycloptsError as error:
        return _refuse(_usage(error), 2)
    except BrokenPipeError:
        # The reader, perhaps `head`, has closed the pipe.
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return code if isinstance(code, int) else 0


def _show_whole_help(words: list[str]) -> None:
    """Let the `--help` of the chosen command show its docstring, not the sentence of the list."""
    _, found, _ = app.parse_commands(words)
    for each in found[1:]:
        if each.default_command and not each.name[0].startswith("-"):
            each.help = None


def _awaited(result: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # noqa: PLC0415

    return asyncio.run(result)


def _prepare(family: str) -> None:
    """Read `.env`, and set up logs and traces, for a command of ours; `--help` and `--version` need none of it."""
    if ENV_FILE.is_file():
        from redrive.settings import load_env_file  # noqa: PLC0415

        load_env_file()
    from redrive.logs import configure_logging_late  # noqa: PLC0415

    configure_logging_late("warning")
    start_tracing(f"redrive-{family}" if family in SERVERS else "redrive")
    # What is loaded by now stays; `entry_point` has put off the search for garbage until here. What comes next is
    # mostly code as well: commands import Temporal's client, and servers all of theirs, when they are called.
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()


def _usage(error: CycloptsError) -> str:
    error.verbose = False
    command = " ".join(["redrive", *(error.command_chain or ())])
    unused = error.unused_tokens if isinstance(error, UnusedCliTokensError) else None
    problem = f"unexpected argument: {' '.join(unused)}" if unused else str(error).strip()
    return f"{problem}\nTry `{command} --help`."


def _refuse(sentence: str, code: int) -> int:
    errors.print(f"redrive: {sentence}", markup=False)
    return code


if __name__ == "__main__":
    main()
