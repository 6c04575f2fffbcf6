"""`redrive schedule …`: pipelines that run at set times."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from pydantic import ValidationError
from pydantic_core import to_json
from rich.console import Group
from rich.text import Text

from redrive.contracts import DEFAULT_TENANT
from redrive.documents import parse_payload, validation_sentence
from redrive.errors import InvalidInput
from redrive.schedules import NewSchedule, Overlap, ScheduleSummary, ScheduleView
from redrive.settings import Settings, read_settings
from redrive.starter.cli.command_options import By, NewLabels, Reason, asked_by, parse_labels
from redrive.starter.cli.list_options import parse_duration, parse_moment
from redrive.starter.cli.records import open_records_if_any
from redrive.starter.cli.runs.commands import payload_text
from redrive.starter.cli.runs.progress import tell_if_no_worker
from redrive.starter.cli.runs.views import moment, print_first, print_json
from redrive.starter.cli.sdk import connect, connect_to_change
from redrive.starter.cli.terminal import Facts, Json, Limit, Listing, Yes, confirm, console, errors, plain
from redrive.store.audit import Action, put_schedule_entry

app = App(name="schedule")
Schedule = Annotated[str, Parameter(name="NAME", help="The schedule's name; `redrive schedule list` shows them.")]
Tenant = Annotated[str, Parameter(help="The schedule's tenant.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Times:
    """When the runs of a schedule start."""

    cron: Annotated[
        list[str] | None,
        Parameter(negative=(), help="A cron expression: `0 5 * * 1-5`, `@daily`. May be given several times."),
    ] = None
    every: Annotated[
        list[str] | None, Parameter(negative=(), help="An interval: `15m`, `8h`. May be given several times.")
    ] = None
    time_zone: Annotated[str, Parameter(help="The time zone of `--cron`: `Europe/Vienna`.")] = "UTC"
    jitter: Annotated[str | None, Parameter(help="Delay each start by a random time of up to this: `5m`.")] = None
    overlap: Annotated[
        Overlap,
        Parameter(
            help="When a run is due while an earlier one is open (a parked run is open): start it as well "
            "(`allow-all`), do not start it (`skip`), start it afterwards (`buffer-one`, `buffer-all`), or cancel the "
            "earlier one (`cancel-other`)."
        ),
    ] = Overlap.ALLOW_ALL

    def fields(self) -> dict[str, Any]:
        """Return the fields of a schedule."""
        return {
            "cron": self.cron or [],
            "every": [parse_duration("--every", text) for text in self.every or []],
            "time_zone": self.time_zone,
            "jitter": parse_duration("--jitter", self.jitter) if self.jitter else timedelta(0),
            "overlap": self.overlap,
        }


NO_TIMES = Times()


@app.command
async def create(
    name: Annotated[str, Parameter(help="A name of your choice: lower case letters, digits, dashes.")],
    pipeline: Annotated[str, Parameter(help="The pipeline's name; `redrive modules` lists them.")],
    /,
    *,
    times: Times = NO_TIMES,
    payload: str | None = None,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    tenant: Tenant = DEFAULT_TENANT,
    label: NewLabels = None,
    paused: bool = False,
    note: str = "",
    by: By = None,
    json: Json = False,
) -> None:
    """Start runs of PIPELINE at set times, each with the same payload. Each time has one run, even if it is repeated.

    **Examples**

    `redrive schedule create nightly hello --cron "0 5 * * 1-5" --time-zone Europe/Vienna --payload '{"name": "Ada"}'`

    `redrive schedule create poll order --every 15m --jitter 1m --overlap skip --file order.json --tenant acme`

    `redrive schedule create weekly hello --every 7d --payload '{"name": "Ada"}' --label mission_id=42`

    Parameters
    ----------
    payload
        The payload of each run, as JSON text. Without any payload it is `{}`. It is checked now.
    file
        Read the payload from this file; `-` reads standard input.
    paused
        Create it paused; `redrive schedule resume` starts it.
    note
        What it is for; kept in Temporal and in the audit log.
    """
    wanted = _new_schedule(
        name=name,
        tenant=tenant,
        pipeline=pipeline,
        payload=parse_payload(payload_text(None, payload, file)),
        labels=parse_labels(label),
        paused=paused,
        note=note,
        **times.fields(),
    )
    settings = read_settings()
    async with await connect_to_change(settings) as redrive:
        await redrive.schedules.check(wanted)
        about = {"pipeline": pipeline, "times": when(wanted), "overlap": wanted.overlap.value}
        named = {"tenant": tenant, "name": name, "actor": asked_by(by)}
        await _note(settings, Action.SCHEDULE_CREATE_REQUESTED, reason=note or None, **named, **about)
        try:
            view = await redrive.schedules.create(wanted)
        except InvalidInput as error:
            await _note(settings, Action.SCHEDULE_CREATE_REFUSED, reason=str(error), **named)
            raise
    _print(view, json=json)


def _new_schedule(**fields: Any) -> NewSchedule:
    try:
        return NewSchedule(**fields)
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from error


@app.command(name="list")
async def list_schedules(*, tenant: str | None = None, limit: Limit = 1000, json: Json = False) -> None:
    """List schedules, with the next time of each. The list may lag behind by a second.

    **Example**

    `redrive schedule list --tenant acme`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    """
    rows = await (await connect()).schedules.list_schedules(tenant, limit + 1)
    print_first(rows, _table, limit=limit, none="no schedules", json=json)


@app.command
async def show(name: Schedule, /, *, tenant: Tenant = DEFAULT_TENANT, json: Json = False) -> None:
    """Show a schedule: its times, its payload, the next runs and the last ones.

    **Example**

    `redrive schedule show nightly --tenant acme`
    """
    _print(await (await connect()).schedules.show(tenant, name), json=json)


@app.command
async def pause(
    name: Schedule, /, *, reason: Reason, tenant: Tenant = DEFAULT_TENANT, by: By = None, json: Json = False
) -> None:
    """Start no more runs until it is resumed. Runs that are open go on.

    **Example**

    `redrive schedule pause nightly --reason "the bank is closed"`
    """
    settings = read_settings()
    redrive, who = await connect_to_change(settings), asked_by(by)
    await redrive.schedules.show(tenant, name)
    await _note(settings, Action.SCHEDULE_PAUSE_REQUESTED, tenant=tenant, name=name, actor=who, reason=reason)
    await redrive.schedules.pause(tenant, name, note=f"{reason} ({who})")
    _print(await redrive.schedules.show(tenant, name), json=json)


@app.command
async def resume(
    name: Schedule, /, *, reason: Reason, tenant: Tenant = DEFAULT_TENANT, by: By = None, json: Json = False
) -> None:
    """Start runs again, from now on; `redrive schedule backfill` starts those that were missed.

    **Example**

    `redrive schedule resume nightly --reason "the bank is back"`
    """
    settings = read_settings()
    redrive, who = await connect_to_change(settings), asked_by(by)
    await redrive.schedules.show(tenant, name)
    await _note(settings, Action.SCHEDULE_RESUME_REQUESTED, tenant=tenant, name=name, actor=who, reason=reason)
    await redrive.schedules.resume(tenant, name, note=f"{reason} ({who})")
    _print(await redrive.schedules.show(tenant, name), json=json)


@app.command
async def trigger(
    name: Schedule, /, *, reason: Reason, tenant: Tenant = DEFAULT_TENANT, by: By = None, json: Json = False
) -> None:
    """Start a run now, besides the schedule's times, and print its id. Its overlap policy holds.

    **Example**

    `redrive schedule trigger nightly --reason "the report is needed today"`
    """
    settings = read_settings()
    redrive = await connect_to_change(settings)
    await redrive.schedules.show(tenant, name)
    await _note(
        settings, Action.SCHEDULE_TRIGGER_REQUESTED, tenant=tenant, name=name, actor=asked_by(by), reason=reason
    )
    run_id = await redrive.schedules.trigger(tenant, name)
    if json:
        print_json({"schedule": name, "tenant": tenant, "run_id": run_id})
    elif run_id:
        await tell_if_no_worker(redrive)
        console.print(run_id, markup=False, soft_wrap=True)
    else:
        errors.print("no run has started: the overlap policy lets it wait, or skips it", markup=False)


@app.command
async def backfill(
    name: Schedule,
    /,
    *,
    since: str,
    reason: Reason,
    until: str | None = None,
    overlap: Overlap = Overlap.ALLOW_ALL,
    tenant: Tenant = DEFAULT_TENANT,
    by: By = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Start the runs that were due in a period: those of a pause, of an outage, or before the schedule was created.

    A time that already had its run gets no second one.

    **Example**

    `redrive schedule backfill nightly --since 2026-05-01T00:00 --until 2026-05-08T00:00 --reason "new report"`

    Parameters
    ----------
    since
        From when on: `2h`, `3d`, or a time such as `2026-05-01T10:00`.
    until
        Up to when; by default now.
    overlap
        Whether these runs run at the same time (`allow-all`) or one after another (`buffer-all`).
    """
    now = datetime.now(UTC)
    begin, end = parse_moment("--since", since, now) or now, parse_moment("--until", until, now) or now
    settings = read_settings()
    redrive = await connect_to_change(settings)
    due = await redrive.schedules.times(tenant, name, begin, end)
    confirm(f"Start the runs of {len(due)} times, {moment(begin)} to {moment(end)}?", yes=yes)
    about = {"since": begin.isoformat(), "until": end.isoformat(), "runs": len(due)}
    await _note(
        settings,
        Action.SCHEDULE_BACKFILL_REQUESTED,
        tenant=tenant,
        name=name,
        actor=asked_by(by),
        reason=reason,
        **about,
    )
    count = await redrive.schedules.backfill(tenant, name, begin, end, overlap=overlap)
    if json:
        print_json({"schedule": name, "tenant": tenant, "due": count})
    else:
        console.print(f"{count} times were due; those without a run get one: see `redrive run list --tenant {tenant}`")


@app.command
async def delete(
    name: Schedule,
    /,
    *,
    reason: Reason,
    tenant: Tenant = DEFAULT_TENANT,
    by: By = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete a schedule. Its runs stay, and those that are open go on.

    **Example**

    `redrive schedule delete nightly --reason "replaced by hourly"`
    """
    settings = read_settings()
    redrive = await connect_to_change(settings)
    await redrive.schedules.show(tenant, name)
    confirm(f"Delete schedule {name} of tenant {tenant}?", yes=yes)
    await _note(settings, Action.SCHEDULE_DELETE_REQUESTED, tenant=tenant, name=name, actor=asked_by(by), reason=reason)
    await redrive.schedules.delete(tenant, name)
    if json:
        print_json({"schedule": name, "tenant": tenant, "deleted": True})
    else:
        console.print(f"deleted {name} of tenant {tenant}", markup=False)


def when(schedule: NewSchedule | ScheduleSummary) -> str:
    """Return the times of a schedule as text."""
    crons = [f"{cron} {schedule.time_zone}" for cron in schedule.cron]
    parts = [*crons, *(f"every {each}" for each in schedule.every)]
    return ", ".join(parts) + (f", jitter {schedule.jitter}" if schedule.jitter else "")


def _print(view: ScheduleView, *, json: bool) -> None:
    if json:
        print_json(view)
    else:
        console.print(_story(view))


def _table(rows: Sequence[ScheduleSummary]) -> Listing:
    table = Listing("name", "tenant", "pipeline", "times", "next", "last run")
    for row in rows:
        following = "paused" if row.paused else moment(row.next_at[0]) if row.next_at else "none"
        last = row.recent[0].run_id if row.recent else ""
        table.add_row(row.name, row.tenant, row.pipeline, plain(when(row)), following, last)
    return table


def _story(view: ScheduleView) -> Group:
    facts = {
        "tenant": view.tenant,
        "pipeline": view.pipeline,
        "times": when(view),
        # As the option has it.
        "overlap": view.overlap.value.replace("_", "-") if view.overlap else "set in Temporal",
        "payload": to_json(view.payload).decode(),
        "labels": ", ".join(f"{name}={value}" for name, value in sorted(view.labels.items())),
        "note": view.note,
        "next": ", ".join(moment(at) for at in view.next_at[:3]) or ("paused" if view.paused else "none"),
        "started": f"{view.runs} run{'' if view.runs == 1 else 's'}, {view.skipped} skipped",
    }
    last = Facts({moment(each.due_at): each.run_id for each in view.recent})
    title = Text.assemble(Text(view.name, style="bold"), "  ", "paused" if view.paused else "")
    heading = Text("\nlast runs" if view.recent else "", style="bold")
    return Group(title, Facts(facts), heading, last)


async def _note(settings: Settings, action: Action, **entry: Any) -> None:
    """Record in the audit log what is asked of a schedule, where there is a database."""
    async with open_records_if_any(settings) as pool:
        if pool:
            await put_schedule_entry(pool, action, **entry)
