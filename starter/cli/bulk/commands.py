"""`redrive bulk plan|replay|resolve|discard`: one command for many dead letters, planned first.

All share the options that say which dead letters, and the safety limits.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from pydantic import ValidationError

from redrive.bulk import BulkCommand, BulkPlan, BulkVerb
from redrive.contracts import DEFAULT_TENANT
from redrive.dead_letters import Mode, Verb
from redrive.documents import validation_sentence
from redrive.errors import InvalidInput, UnsafeEffects
from redrive.keys import new_request_id
from redrive.postgres.tenancy import Pool
from redrive.settings import read_settings
from redrive.starter.cli.bulk.plan_views import plan_view
from redrive.starter.cli.bulk.watch import follow_bulk, judge
from redrive.starter.cli.command_options import By, Reason, RequestId, asked_by, own_person
from redrive.starter.cli.dead_letters.commands import chosen_output, input_patch
from redrive.starter.cli.dead_letters.lists import LetterOptions
from redrive.starter.cli.records import open_records, open_records_if_any
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.sdk import connect, connect_to_change
from redrive.starter.cli.terminal import Json, Yes, confirm, console, errors
from redrive.store.bulk.plans import KnownSteps, plan_bulk

if TYPE_CHECKING:
    from redrive import Redrive

Set = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        allow_leading_hyphen=True,
        negative=(),
        help="Change a field of each step's input: `path=value`, JSON or a bare word. Misfits are skipped.",
    ),
]
Patch = Annotated[
    Path | None,
    Parameter(allow_leading_hyphen=True, help="Change each input by this JSON Merge Patch; `-` reads stdin."),
]
FromStep = Annotated[str | None, Parameter(help="Begin at this earlier step; it and those after it run again.")]
StepOnly = Annotated[bool, Parameter(help="Run the dead steps alone; the runs then wait for `redrive run continue`.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BulkLetters(LetterOptions):
    """Which open dead letters of a tenant."""

    tenant: Annotated[str, Parameter(help="The tenant whose dead letters they are.")] = DEFAULT_TENANT


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Care:
    """The safety limits."""

    rate: Annotated[float | None, Parameter(help="Maximum number of commands per second.")] = None
    parallelism: Annotated[
        int, Parameter(validator=Number(gte=1, lte=500), help="How many may be under way at once.")
    ] = 20
    canary: Annotated[
        int, Parameter(validator=Number(gte=0), help="How many go first: the rest waits for their outcome.")
    ] = 0
    stop_percent: Annotated[
        float, Parameter(validator=Number(gte=0, lte=100), help="Stop when more than this share of them fails.")
    ] = 10.0


ALL, USUAL = BulkLetters(), Care()


def bulk_command(verb: BulkVerb, chosen: BulkLetters, care: Care, **fields: Any) -> BulkCommand:
    """Build a command from the options, or raise which one is wrong."""
    selection = chosen.selection(datetime.now(UTC))
    try:
        return BulkCommand(tenant=chosen.tenant, verb=verb, selection=selection, **asdict(care), **fields)
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from error


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BulkCommandOptions:
    """How the command is carried out."""

    plan: Annotated[str | None, Parameter(help="Start only if the plan still has this hash.")] = None
    by: By = None
    request_id: RequestId = None
    dry_run: Annotated[bool, Parameter(help="Print the plan and change nothing.")] = False
    detach: Annotated[bool, Parameter(help="Return as soon as it is started.")] = False
    yes: Yes = False
    json: Json = False


ASKING = BulkCommandOptions()


async def plan(
    *,
    chosen: BulkLetters = ALL,
    care: Care = USUAL,
    from_step: FromStep = None,
    step_only: StepOnly = False,
    set_: Set = None,
    patch: Patch = None,
    json: Json = False,
) -> None:
    """Show what a bulk replay would do: how many, which steps run again, which effects that repeats. Changes nothing.

    **Example**

    `redrive bulk plan --fingerprint 0ad588dac293f45a`
    """
    command = _replay(chosen, care, from_step=from_step, step_only=step_only, set_=set_, patch=patch)
    settings = read_settings()
    redrive = await connect(settings)
    async with open_records_if_any(settings) as pool:
        _print_plan(await _plan(redrive, pool, command), json=json)


async def replay(
    *,
    reason: Reason,
    chosen: BulkLetters = ALL,
    care: Care = USUAL,
    how: BulkCommandOptions = ASKING,
    from_step: FromStep = None,
    step_only: StepOnly = False,
    set_: Set = None,
    patch: Patch = None,
    allow_unsafe: Annotated[bool, Parameter(help="Say yes to repeating effects that no key guards.")] = False,
) -> None:
    """Replay many dead letters: those that exist now, no others. Shows progress until all have ended.

    **Examples**

    `redrive bulk replay --fingerprint 0ad588dac293f45a --reason "the provider is back" --canary 5`

    `redrive bulk replay --pipeline order --since 2h --reason "the provider is back" --rate 20 --stop-percent 5`
    """
    command = _replay(chosen, care, from_step=from_step, step_only=step_only, set_=set_, patch=patch)
    await _carry_out(command, how, reason, allow_unsafe=allow_unsafe)


async def resolve(
    *,
    reason: Reason,
    chosen: BulkLetters = ALL,
    care: Care = USUAL,
    how: BulkCommandOptions = ASKING,
    output: Annotated[str | None, Parameter(help="What each step would have returned, as JSON.")] = None,
    output_file: Annotated[
        Path | None, Parameter(allow_leading_hyphen=True, help="Read the output from this file; `-` reads stdin.")
    ] = None,
) -> None:
    """Close many dead letters with one output: their runs continue as if the steps had returned it.

    **Example**

    `redrive bulk resolve --step notify --output '{"sent": false}' --reason "mails are not needed any more"`
    """
    document = chosen_output(output, output_file)
    await _carry_out(bulk_command(Verb.RESOLVE, chosen, care, output=document), how, reason)


async def discard(
    *, reason: Reason, chosen: BulkLetters = ALL, care: Care = USUAL, how: BulkCommandOptions = ASKING
) -> None:
    """Discard many dead letters: their runs end FAILED. `redrive bulk ignore` is an alias.

    **Example**

    `redrive bulk discard --pipeline import --until 30d --reason "too old"`
    """
    await _carry_out(bulk_command(Verb.DISCARD, chosen, care), how, reason)


def _replay(
    chosen: BulkLetters,
    care: Care,
    *,
    from_step: str | None,
    step_only: bool,
    set_: list[str] | None,
    patch: Path | None,
) -> BulkCommand:
    mode = Mode.STEP_ONLY if step_only else Mode.FROM_STEP
    edit = input_patch(set_ or [], patch)
    return bulk_command(Verb.REPLAY, chosen, care, mode=mode, from_step=from_step, input_patch=edit)


async def _plan(redrive: "Redrive", pool: "Pool | None", command: BulkCommand) -> BulkPlan:
    planner = partial(plan_bulk, pool, KnownSteps.published(await redrive.catalog())) if pool else None
    return await redrive.bulk.plan(command, planner)


def _print_plan(plan: BulkPlan, *, json: bool) -> None:
    if json:
        print_json(plan)
    else:
        console.print(plan_view(plan))


async def _carry_out(command: BulkCommand, how: BulkCommandOptions, reason: str, *, allow_unsafe: bool = False) -> None:
    settings = read_settings()
    who = asked_by(how.by)
    redrive = await connect_to_change(settings)
    async with open_records(settings) as pool:
        plan = await _plan(redrive, pool, command)
    if how.dry_run:
        _print_plan(plan, json=how.json)
        return
    if plan.unsafe and not allow_unsafe:
        raise UnsafeEffects(f"{', '.join(plan.unsafe)}: repeats effects that no key guards; add --allow-unsafe")
    if not how.yes:
        errors.print(plan_view(plan))
        confirm(f"{command.verb.capitalize()} these {plan.count} dead letters?", yes=False)
    async with open_records(settings) as pool:
        answer = await redrive.bulk.start(
            plan.model_copy(update={"hash": how.plan or plan.hash}),
            requested_by=who,
            reason=reason,
            allow_unsafe=allow_unsafe,
            request_id=how.request_id or new_request_id(),
            person=own_person(),
        )
        if how.detach:
            _print_started(answer.bulk_id, answer.message, json=how.json)
            return
        if not how.json:
            _print_started(answer.bulk_id, answer.message, json=False)
        view = await follow_bulk(pool, answer.bulk_id, quiet=how.json)
    if how.json:
        print_json(view)
    judge(view)


def _print_started(bulk_id: str, message: str, *, json: bool) -> None:
    if json:
        print_json({"id": bulk_id, "message": message})
    else:
        console.print(f"{bulk_id} started: {message}", markup=False, soft_wrap=True)
