"""`redrive run …`: start runs, look at them, cancel them."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from redrive import Redrive
from redrive.contracts import DEFAULT_TENANT, RunStatus
from redrive.documents import parse_payload
from redrive.errors import InvalidInput, RunCanceled, RunFailed
from starter.progress import follow
from starter.terminal import console
from starter.views import print_json, run_table, runs_table

app = App(name="run", help="Start runs, look at them, cancel them.")

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON instead of a table.")]


@app.command
async def start(
    pipeline: str,
    source: Annotated[str | None, Parameter(help="`-` reads the payload from standard input.")] = None,
    *,
    payload: str | None = None,
    file: Path | None = None,
    tenant: str = DEFAULT_TENANT,
    key: str | None = None,
    correlation_id: str | None = None,
    user: str | None = None,
    wait: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> None:
    """Start a run of PIPELINE.

    Examples:

        redrive run start hello --payload '{"name": "Ada"}' --wait

        redrive run start order --file order.json --key order:4711

        cat order.json | redrive run start order -

    Parameters
    ----------
    payload
        The payload as JSON text.
    file
        Read the payload from this file.
    tenant
        The organisation that owns the run.
    key
        Idempotency key: the same key gives the same run.
    correlation_id
        An id of yours that every log line of the run carries.
    user
        The user on whose behalf the run works; sent to services in a header.
    wait
        Show progress until the run has ended. The exit code tells the outcome: 0, 3 (FAILED) or 4 (CANCELED).
    """
    document = parse_payload(_payload_text(source, payload, file))
    redrive = await Redrive.connect()
    started = await redrive.start(
        pipeline, document, tenant=tenant, key=key, correlation_id=correlation_id, user_id=user
    )
    if not wait:
        if json:
            print_json(started)
        else:
            console.print(started.run_id if not started.is_cached else f"{started.run_id} (known: {started.status})")
        return
    view = await follow(redrive, started.run_id, quiet=json)
    if json:
        print_json(view)
    if view.status is RunStatus.FAILED:
        raise RunFailed(f"run {view.run_id} FAILED: {view.error}")
    if view.status is RunStatus.CANCELED:
        raise RunCanceled(f"run {view.run_id} was CANCELED")


def _payload_text(source: str | None, payload: str | None, file: Path | None) -> bytes | str:
    given = [value for value in (source, payload, file) if value is not None]
    if len(given) > 1:
        raise InvalidInput("payload: give one of --payload, --file and -, not several")
    if source is not None and source != "-":
        raise InvalidInput(f"payload: {source!r} is not understood; use --payload '{{…}}', --file F or -")
    if source == "-":
        return sys.stdin.buffer.read()
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            raise InvalidInput(f"payload: cannot read {str(file)!r}: {error.strerror}") from error
    return payload if payload is not None else "{}"


@app.command
async def status(run_id: str, *, json: Json = False) -> None:
    """Show where a run is: its steps, attempts, the next retry and errors."""
    view = await (await Redrive.connect()).status(run_id)
    if json:
        print_json(view)
    else:
        console.print(run_table(view))


@app.command(name="list")
async def list_runs(
    *,
    status: RunStatus | None = None,
    pipeline: str | None = None,
    tenant: str | None = None,
    limit: int = 20,
    json: Json = False,
) -> None:
    """List runs, newest first. The list may lag behind by a second.

    Parameters
    ----------
    status
        Only runs with this status.
    pipeline
        Only runs of this pipeline.
    tenant
        Only runs of this tenant.
    limit
        How many at the most.
    """
    redrive = await Redrive.connect()
    rows = [row async for row in redrive.list_runs(status=status, pipeline=pipeline, tenant=tenant, limit=limit)]
    if json:
        print_json(rows)
    else:
        console.print(runs_table(rows))


@app.command
async def cancel(run_id: str, *, reason: str, json: Json = False) -> None:
    """Cancel an open run: its running step is interrupted, later ones do not start.

    Parameters
    ----------
    reason
        Why; kept in the run's history.
    """
    redrive = await Redrive.connect()
    await redrive.cancel(run_id, reason=reason)
    if json:
        print_json({"run_id": run_id, "requested": "cancel"})
    else:
        console.print(f"cancellation of {run_id} requested")
