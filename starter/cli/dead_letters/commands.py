"""`redrive dlq replay|resolve|discard|restart`: commands to dead letters.

A replay goes from the options to the answer: the plan, the confirmation, the command, the wait. An operator's edits of
the input are a JSON Merge Patch.
"""

import asyncio
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from redrive import Redrive
from redrive.contracts import PAYLOAD_LIMIT
from redrive.dead_letter_client import Plan
from redrive.dead_letters import (
    REASON_LIMIT,
    Discard,
    LetterCommand,
    LetterState,
    LetterStatus,
    Mode,
    Replay,
    Resolve,
    Restart,
    refusal,
)
from redrive.documents import changed_paths, json_problem, parse_json
from redrive.errors import CommandRefused, InvalidInput, RunNotFound, TooLarge, Unavailable
from redrive.postgres.tenancy import Pool
from redrive.settings import read_settings
from redrive.starter.cli.command_options import Giving, GivingReplay, finish
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.cli.list_options import Letter, parse_duration
from redrive.starter.cli.records import named_letter, open_records
from redrive.starter.cli.runs.progress import wait_for_run
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.sdk import connect_to_change
from redrive.starter.cli.terminal import Facts, confirm, console, errors
from redrive.store.dead_letters.lists import open_siblings
from redrive.store.dead_letters.models import LetterRecord

_STDIN = Path("-")
_LIKE_JSON = re.compile(r"""[\[{"'\s]|-?(NaN|Infinity)$|.*[\x00-\x1f]|.*\s$""", re.DOTALL)


async def replay(
    letter: Letter,
    /,
    *,
    from_step: str | None = None,
    step_only: bool = False,
    set_: Annotated[list[str] | None, Parameter(name="--set", allow_leading_hyphen=True, negative=())] = None,
    patch: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    attempts: Annotated[int | None, Parameter(validator=Number(gte=1, lte=1000))] = None,
    timeout: str | None = None,
    base: str | None = None,
    how: GivingReplay,
) -> None:
    """Run a dead step again: its run continues from there, in place. The outputs of earlier steps are reused.

    **Examples**

    `redrive dlq replay run-01a1e2177540731697934191006e66dd/charge --reason "the bank is back" --wait`

    `redrive dlq replay run-01a1e2177540731697934191006e66dd/charge --reason typo --set customer.age=42 --dry-run`

    Parameters
    ----------
    from_step
        Begin at this earlier step; it and those after it run again.
    step_only
        Run only the dead step; the run then waits for `redrive run continue`.
    set_
        Change a field of the step input: `path=value`, with dots in the path; the value is JSON or a bare word
        (`item=lamp`); `null` removes the field. May be given several times.
    patch
        Change the input by this file, a JSON Merge Patch; `-` reads it from standard input.
    attempts
        Maximum number of attempts in this cycle.
    timeout
        How long one attempt may take in this cycle: `30s`, `5m`.
    base
        The first delay between attempts in this cycle: `500ms`, `2s`.
    """
    command = how.command(
        Replay,
        mode=Mode.STEP_ONLY if step_only else Mode.FROM_STEP,
        from_step=from_step,
        input_patch=input_patch(set_ or [], patch),
        policy=_policy(attempts, timeout, base),
    )
    await replay_letter(letter, command, how)


def _policy(attempts: int | None, timeout: str | None, base: str | None) -> dict[str, Any] | None:
    policy: dict[str, Any] = {"max_attempts": attempts} if attempts is not None else {}
    for name, option, text in (("timeout", "--timeout", timeout), ("base", "--base", base)):
        if text is not None:
            policy[name] = parse_duration(option, text).total_seconds()
    return policy or None


async def resolve(
    letter: Letter,
    /,
    *,
    how: Giving,
    output: str | None = None,
    output_file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
) -> None:
    """Close a dead letter with an output: the run continues as if the step had returned it.

    **Example**

    `redrive dlq resolve run-01a1…/charge --output '{"receipt": "R-17"}' --reason "paid in cash"`

    Parameters
    ----------
    output
        What the step would have returned, as JSON; it must fit the module's output.
    output_file
        Read the output from this file; `-` reads it from standard input.
    """
    document = chosen_output(output, output_file)
    await _give(letter, how.command(Resolve, output=document), "Resolve {id} with this output?", how)


async def discard(letter: Letter, /, *, how: Giving) -> None:
    """Discard a dead letter: its run ends FAILED. `redrive dlq ignore` is an alias.

    **Example**

    `redrive dlq discard run-01a1e2177540731697934191006e66dd/charge --reason "the customer has left"`
    """
    await _give(letter, how.command(Discard), "Discard {id}? Its run ends FAILED.", how)


async def restart(letter: Letter, /, *, how: Giving) -> None:
    """Start a new run from the dead step on, if the run itself has ended: it was terminated, say, or has failed.

    **Example**

    `redrive dlq restart run-01a1e2177540731697934191006e66dd/charge --reason "terminated by mistake"`
    """
    await _give(letter, how.command(Restart), "Start a new run in place of that of {id}?", how)


async def reset(letter: Letter, /, *, how: Giving) -> None:
    """Reset a workflow that is no pipeline run to before what failed: a new run does everything since then again.

    **Warning:** activities that were started together with the failed one, or later, run again, and the old run ends as
    terminated: whoever waits for its result is told so, and its other dead letters are closed. A replay does nothing of
    it; use this for code that has to change.

    **Example**

    `redrive dlq reset order-1/charge --reason "the new code takes another way"`
    """
    settings = read_settings()
    redrive = await connect_to_change(settings)
    async with open_records(settings) as pool:
        record = await named_letter(pool, letter)
        others = await open_siblings(pool, record.letter)
    event_id = record.reset_event()
    confirm(f"Reset the workflow of {record.id}? What it did since then is done again; the old run ends.", yes=how.yes)
    command = how.command(Discard)
    answer = await redrive.dead_letters.reset(
        record.letter,
        event_id,
        requested_by=command.requested_by,
        reason=command.reason,
        request_id=command.request_id,
    )
    if answer.accepted:
        reason = f"its workflow was reset: {command.reason}"[:REASON_LIMIT]
        discard = partial(redrive.dead_letters.discard, requested_by=command.requested_by, reason=reason)
        await asyncio.gather(*map(discard, others))
    finish(answer, json=how.json)


async def _give(letter: str, command: LetterCommand, question: str, how: Giving) -> None:
    settings = read_settings()
    redrive = await connect_to_change(settings)
    async with open_records(settings) as pool:
        record = await named_letter(pool, letter)
    confirm(question.format(id=record.id), yes=how.yes)
    finish(await redrive.dead_letters.send(record.letter, command), json=how.json)


async def replay_letter(letter: str, command: Replay, how: Giving) -> None:
    """Replay a dead letter, or show what that would do."""
    settings = read_settings()
    redrive = await connect_to_change(settings)
    async with open_records(settings) as pool:
        record = await named_letter(pool, letter)
        if how.dry_run:
            await _check(redrive, record, command)
        await _check_edit(redrive, record, command, refuse=how.dry_run)
        if how.dry_run:
            _print_plan(record, command, await _plan(redrive, record, command), json=how.json)
            return
        if not how.yes:
            plan = await _plan(redrive, record, command)
            errors.print(_plan_table(command, plan))
            confirm(f"Replay {record.id}?", yes=False)
        await _give_replay(redrive, pool, record, command, how)


async def _give_replay(redrive: Redrive, pool: Pool, record: LetterRecord, command: Replay, how: Giving) -> None:
    if how.wait and record.letter.foreign:
        raise WrongUsage(
            "--wait is for runs of pipelines: wait for the workflow itself, with `temporal workflow result`"
        )
    answer = await redrive.dead_letters.send(record.letter, command)
    if not (how.wait and answer.accepted):
        finish(answer, json=how.json)
        return

    async def begun() -> bool:
        return (await named_letter(pool, record.id)).status is not LetterStatus.REPLAYING

    if not how.json:
        finish(answer, json=False)
    await wait_for_run(redrive, record.run_id, json=how.json, begun=begun, answer=answer)


async def _check(redrive: Redrive, record: LetterRecord, command: Replay) -> None:
    """Say what would be refused, as far as that is known without sending the command."""
    state = LetterState(
        letter=record.letter, status=record.status, replays=record.replay_count, blocked_by=record.blocked_by
    )
    problem = refusal(state, command)
    if problem is None and not record.letter.foreign:
        try:
            ended = (await redrive.status(record.run_id)).status.closed
        except RunNotFound:
            problem = "the run is not in Temporal any more: its history cannot be read"
        else:
            problem = "the run has ended: `redrive dlq restart` starts a new run from this step" if ended else None
    if problem:
        raise CommandRefused(f"it would be refused: {problem}")


async def _check_edit(redrive: Redrive, record: LetterRecord, command: Replay, *, refuse: bool) -> None:
    """Name the fields of an edit that the step does not know; of a dry run, refuse what it would not take.

    Otherwise the worker refuses it, with a line in the audit log.
    """
    try:
        check = await redrive.check_edit(record.letter, command)
    except (RunNotFound, Unavailable):
        # The answer to the command says why it is not possible.
        return
    if check.problem and refuse:
        raise CommandRefused(f"it would be refused: the edited input does not fit: {check.problem}")
    for field in check.unknown:
        errors.print(f"--set {field}", style="yellow", markup=False)


async def _plan(redrive: Redrive, record: LetterRecord, command: Replay) -> Plan:
    return await redrive.dead_letters.plan(record.letter, mode=command.mode, from_step=command.from_step)


def _print_plan(record: LetterRecord, command: Replay, plan: Plan, *, json: bool) -> None:
    if json:
        edits = {"edited": changed_paths(command.input_patch or {}), "policy": command.policy}
        print_json({"dry_run": True, "id": record.id, **plan.model_dump(), **edits})
    else:
        console.print(_plan_table(command, plan))
        console.print("a dry run: nothing was changed")


def _plan_table(command: Replay, plan: Plan) -> Facts:
    rows = {
        "reused": plan.reused,
        "run again": plan.run_again,
        "left for later": plan.left_for_later,
        "edited": changed_paths(command.input_patch or {}),
        "policy": [f"{name} {value}" for name, value in (command.policy or {}).items()],
    }
    return Facts({name: ", ".join(values) or "none" for name, values in rows.items()})


def input_patch(settings: Sequence[str], patch: Path | None) -> dict[str, Any] | None:
    """Return the edit of a step input that `--set` or `--patch` asks for; None without either."""
    if settings and patch is not None:
        raise WrongUsage("give --set or --patch, not both")
    if patch is not None:
        return read_object("--patch", patch)
    return _set(settings) if settings else None


def read_object(option: str, file: Path) -> dict[str, Any]:
    """Read a JSON object from a file, or from standard input for `-`."""
    return parse_object(option, _read(option, file))


def _read(option: str, file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == _STDIN else file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{option}: cannot read {str(file)!r}: {error.strerror}") from error


def chosen_output(output: str | None, file: Path | None) -> Any:
    """Return the output from `--output` or `--output-file`; one of them is needed. An activity may return any JSON."""
    if output is not None and file is None:
        return _json("--output", output)
    if file is not None and output is None:
        return _json("--output-file", _read("--output-file", file))
    raise WrongUsage("give one of --output and --output-file")


def parse_object(option: str, text: bytes | str) -> dict[str, Any]:
    """Read a JSON object that a step may take or return."""
    value = _json(option, text)
    if not isinstance(value, dict):
        raise InvalidInput(f"{option}: a JSON object is needed, not {type(value).__name__}")
    return value


def _json(option: str, text: bytes | str) -> Any:
    if len(text) > PAYLOAD_LIMIT:
        raise TooLarge(f"{option}: {len(text)} bytes; the limit is {PAYLOAD_LIMIT}")
    try:
        value = parse_json(text)
    except TooLarge as error:
        raise TooLarge(f"{option}: {error}") from None
    except ValueError as error:
        raise InvalidInput(f"{option}: not valid JSON: {error}") from error
    problem = json_problem(value)
    if problem:
        raise InvalidInput(f"{option}{problem}")
    return value


def _set(settings: Sequence[str]) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        names = path.split(".")
        if not equals or not all(names):
            raise InvalidInput(f"--set {setting!r}: write path=value, such as --set 'customer.age=42'")
        _put(patch, names, _set_value(path, text), setting)
    return patch


def _set_value(path: str, text: str) -> Any:
    """Read a value: JSON, or a bare word, which is text. What begins like JSON must be JSON: it would be a slip."""
    try:
        return _json(f"--set {path}", text)
    except TooLarge:
        raise
    except InvalidInput as error:
        if text and not _LIKE_JSON.match(text):
            return text
        hint = f"text that begins like JSON has quotes: --set '{path}=\"text\"'"
        raise InvalidInput(f"{error}; {hint}") from error


def _put(patch: dict[str, Any], names: list[str], value: Any, setting: str) -> None:
    *parents, last = names
    for name in parents:
        inner = patch.setdefault(name, {})
        if not isinstance(inner, dict):
            raise WrongUsage(f"--set {setting!r}: contradicts another --set")
        patch = inner
    if last in patch:
        raise WrongUsage(f"--set {setting!r}: contradicts another --set")
    patch[last] = value
