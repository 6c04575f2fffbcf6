"""`redrive dlq replay|resolve|discard|restart`: commands to dead letters."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from redrive.dead_letters import Discard, LetterCommand, Mode, Replay, Resolve, Restart
from redrive.settings import read_settings
from redrive.starter.cli.command_options import Giving, GivingReplay, Letter, finish
from redrive.starter.cli.dead_letters.edits import chosen_output, input_patch
from redrive.starter.cli.dead_letters.replays import replay_letter
from redrive.starter.cli.records import named_letter, open_records
from redrive.starter.cli.sdk import connect_to_change
from redrive.starter.cli.terminal import confirm
from redrive.starter.cli.times import parse_duration


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
        Change a field of the step input: `path=value`, with dots in the path and JSON as the value; `null` removes
        the field. May be given several times.
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
    """Start a new run from the dead step on, if the run itself is gone: terminated, or forgotten by Temporal.

    **Example**

    `redrive dlq restart run-01a1e2177540731697934191006e66dd/charge --reason "terminated by mistake"`
    """
    await _give(letter, how.command(Restart), "Start a new run in place of that of {id}?", how)


async def _give(letter: str, command: LetterCommand, question: str, how: Giving) -> None:
    settings = read_settings()
    redrive = await connect_to_change(settings)
    async with open_records(settings) as pool:
        record = await named_letter(pool, letter)
    confirm(question.format(id=record.id), yes=how.yes)
    finish(await redrive.dead_letters.send(record.letter, command), json=how.json)
