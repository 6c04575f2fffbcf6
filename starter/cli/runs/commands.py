"""`redrive run …`: start runs, show them, cancel them, let them continue. `redrive modules`: what can be started.

`redrive run list` is in `lists.py`.
"""

import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from redrive.contracts import DEFAULT_TENANT, ActivityVerb, RunStatus, StartedRun, StepStatus
from redrive.documents import parse_payload
from redrive.errors import InvalidInput
from redrive.keys import KEY_TTL, check_ttl
from redrive.settings import read_settings
from redrive.starter.cli.command_options import By, Giving, NewLabels, Reason, asked_by, finish, parse_labels
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.cli.list_options import FIRST_PAGE, PageOptions, parse_duration
from redrive.starter.cli.runs.progress import run_output, tell_if_no_worker, wait_for_run
from redrive.starter.cli.runs.views import (
    modules_table,
    print_json,
    run_json,
    run_table,
)
from redrive.starter.cli.sdk import connect, connect_to_change, named_run
from redrive.starter.cli.terminal import Json, confirm, console, errors

STDIN = "-"
RunId = Annotated[str, Parameter(name="RUN-ID", help="The run's id, or a beginning of it that no other run has.")]
WorkflowId = Annotated[
    str, Parameter(name="WORKFLOW-ID", help="The workflow's id, as `redrive run retrying` lists it.")
]
ActivityId = Annotated[str, Parameter(name="ACTIVITY-ID", help="The activity's id, as listed there.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What a run is started with."""

    payload: Annotated[str | None, Parameter(help="The payload as JSON text. Without any payload it is `{}`.")] = None
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True, help="Read the payload from this file.")] = None
    tenant: Annotated[str, Parameter(help="The run's tenant.")] = DEFAULT_TENANT
    key: Annotated[
        str | None,
        Parameter(
            help="Idempotency key: the same key gives the same run, however often it is started, and then its result."
        ),
    ] = None
    ttl: Annotated[
        str | None,
        Parameter(
            help="How long the key is kept: `12h`, `7d`; by default 30 days. `redrive keys` shows and resets keys."
        ),
    ] = None
    correlation_id: Annotated[str | None, Parameter(help="Your own id, on every log line of the run.")] = None
    user: Annotated[str | None, Parameter(help="The user that the run is for; sent to services in a header.")] = None
    label: NewLabels = None

    @property
    def labels(self) -> dict[str, str]:
        """The labels by their names."""
        return parse_labels(self.label)

    @property
    def lifetime(self) -> timedelta:
        """How long the key is kept."""
        if self.ttl is None:
            return KEY_TTL
        if self.key is None:
            raise WrongUsage("--ttl says how long a key is kept: give one with --key")
        return check_ttl(parse_duration("--ttl", self.ttl))


EMPTY = StartOptions()


async def start(
    pipeline: str,
    source: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    given: StartOptions = EMPTY,
    wait: bool = False,
    json: Json = False,
) -> None:
    """Start a run of PIPELINE and print its id. Without a worker the run waits for one, and this says so.

    **Examples**

    `redrive run start hello --payload '{"name": "Ada"}' --wait`

    `redrive run start order --file order.json --key order:4711 --ttl 7d`

    `jq .order big.json | redrive run start order -`

    Parameters
    ----------
    pipeline
        The pipeline's name; `redrive modules` lists them.
    source
        `-` reads the payload from standard input.
    wait
        Show progress until the run has ended, then its result. The exit code is the outcome: 0, 3 (FAILED),
        4 (CANCELED) or 5 (parked: a step is a dead letter). Ctrl-C stops waiting, not the run.
    """
    document = parse_payload(payload_text(source, given.payload, given.file))
    lifetime = given.lifetime
    async with await connect_to_change() as redrive:
        started = await redrive.start(
            pipeline,
            document,
            tenant=given.tenant,
            key=given.key,
            ttl=lifetime,
            correlation_id=given.correlation_id,
            user_id=given.user,
            labels=given.labels,
        )
    if not started.status.closed:
        await tell_if_no_worker(redrive)
    if wait:
        await wait_for_run(redrive, started.run_id, json=json)
    elif json:
        print_json(started)
    else:
        _print_started(started)


def payload_text(source: str | None, payload: str | None, file: Path | None) -> bytes | str:
    """Return the payload as text, from the one place where it is given."""
    if source and source != STDIN:
        what = "unknown option:" if source.startswith("-") else "not understood:"
        raise WrongUsage(f"{what} {source}; a payload is given as --payload '{{…}}', --file F or -")
    given = [value for value in (source, payload, file) if value is not None]
    if len(given) > 1:
        raise WrongUsage("payload: give one of --payload, --file and -, not several")
    if source == STDIN or str(file) == STDIN:
        return sys.stdin.buffer.read()
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            raise InvalidInput(f"payload: cannot read {str(file)!r}: {error.strerror}") from error
    return payload if payload is not None else "{}"


def _print_started(started: StartedRun) -> None:
    # Only the id goes to stdout, so that `id=$(redrive run start …)` works.
    console.print(started.run_id, markup=False, soft_wrap=True)
    if started.is_cached:
        errors.print(f"this key has a run already: it is {started.status.value}, nothing new was started")


async def status(run_id: RunId, /, *, json: Json = False) -> None:
    """Show a run's status: its steps, attempts, the next retry, errors, and the result once there is one.

    **Examples**

    `redrive run status run-01a1e2177540731697934191006e66dd`

    `redrive run status 01a1e217 --json | jq -r .status`
    """
    redrive = await connect()
    run_id = await named_run(redrive, run_id)
    view = await redrive.status(run_id)
    output = await run_output(redrive, run_id, view.status)
    if json:
        print_json(run_json(view, output))
    else:
        console.print(run_table(view, output))


async def list_retrying(
    *,
    tenant: str | None = None,
    shown: PageOptions = FIRST_PAGE,
) -> None:
    """List the steps in retry, those due first, and failing activities of any other workflow in the namespace.

    Temporal has no list of the activities: the first open workflows are looked at, and how many is said.

    **Example**

    `redrive run retrying --tenant acme`

    Parameters
    ----------
    tenant
        Only steps and workflows of this tenant.
    """
    # Here: the other commands do not read the database.
    from redrive.starter.cli.runs.retrying import print_retrying  # noqa: PLC0415

    await print_retrying(tenant, shown.limit, shown.cursor, json=shown.json)


async def pause_activity(workflow_id: WorkflowId, activity_id: ActivityId, /, *, reason: Reason, by: By = None) -> None:
    """Pause a failing activity of a workflow that is no pipeline run: it is not tried again until it is unpaused.

    **Example**

    `redrive run pause-activity order-1 7 --reason "the bank is closed"`
    """
    await _command_activity("pause", workflow_id, activity_id, reason, by)


async def unpause_activity(
    workflow_id: WorkflowId, activity_id: ActivityId, /, *, reason: Reason, by: By = None
) -> None:
    """Let a paused activity of a workflow that is no pipeline run go on.

    **Example**

    `redrive run unpause-activity order-1 7 --reason "the bank is open"`
    """
    await _command_activity("unpause", workflow_id, activity_id, reason, by)


async def retry_activity(workflow_id: WorkflowId, activity_id: ActivityId, /, *, reason: Reason, by: By = None) -> None:
    """Have a failing activity of a workflow that is no pipeline run tried again now; its attempts begin at 1 again.

    **Example**

    `redrive run retry-activity order-1 7 --reason "the bank is open"`
    """
    await _command_activity("retry", workflow_id, activity_id, reason, by)


async def _command_activity(verb: str, workflow_id: str, activity_id: str, reason: str, by: str | None) -> None:
    # Here: the other commands do not read the database.
    from redrive.starter.cli.runs.activities import DONE, command  # noqa: PLC0415

    who, asked = asked_by(by), ActivityVerb(verb)
    await command(read_settings(), asked, workflow_id, activity_id, by=who, reason=reason)
    console.print(f"{workflow_id}, activity {activity_id}: {DONE[asked]}", soft_wrap=True)


async def cancel(run_id: RunId, /, *, reason: Reason, by: By = None, json: Json = False) -> None:
    """Cancel an open run: its running step is interrupted, later ones do not start.

    The dead letters of a parked run are closed with it. Who asked and why is in the audit log, if there is a database.

    **Example**

    `redrive run cancel run-01a1e2177540731697934191006e66dd --reason "ordered twice"`
    """
    # Here: the other commands do not read the database.
    from redrive.starter.cli.runs.cancels import note_cancel  # noqa: PLC0415

    settings, who = read_settings(), asked_by(by)
    redrive = await connect_to_change(settings)
    view = await redrive.status(await named_run(redrive, run_id))
    if not view.status.closed:
        await note_cancel(settings, view, actor=who, reason=reason)
    await redrive.cancel(view.run_id, reason=f"{reason} (asked for by {who})")
    if json:
        print_json({"run_id": view.run_id, "requested": "cancel"})
    else:
        follow = f"redrive run status {view.run_id}"
        console.print(f"asked {view.run_id} to stop; `{follow}` shows when it has", soft_wrap=True)


async def go_on(run_id: RunId, /, *, how: Giving) -> None:
    """Let a PARTIAL run, which waits after a `--step-only` replay, continue with its later steps.

    **Example**

    `redrive run continue run-01a1e2177540731697934191006e66dd --reason "the first charge went well"`
    """
    redrive = await connect_to_change()
    run_id = await named_run(redrive, run_id)
    view = await redrive.status(run_id)
    if view.status is RunStatus.PARTIAL:
        left = ", ".join(step.name for step in view.steps if step.status is StepStatus.PENDING)
        confirm(f"Let run {run_id} go on with {left}?", yes=how.yes)
    answer = await redrive.dead_letters.go_on(
        run_id, requested_by=asked_by(how.by), reason=how.reason, request_id=how.request_id
    )
    finish(answer, json=how.json)


async def modules(*, json: Json = False) -> None:
    """List the pipelines and modules that a live worker knows: what can be started, and with which fields.

    A fast step is first attempted inside the workflow task: quicker, and run again if the worker dies meanwhile.

    **Examples**

    `redrive modules`

    `redrive modules --json` adds the schema of input and output and the whole retry policy of each module.
    """
    catalog = await (await connect()).catalog()
    if json:
        print_json(catalog)
    else:
        console.print(modules_table(catalog))
