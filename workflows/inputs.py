"""Reads what reaches a workflow, from whoever sent it.

Payloads are decoded here and not by Temporal's converter: what cannot be decoded must be answered with a sentence that
names the place. The converter would drop it silently, or fail the workflow task forever. So every workflow takes
`raw: RawValue = NOTHING`, reads it first, and has no `@workflow.init`. More than one input fails the workflow itself,
not its workflow task again and again.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from redrive.categories import Category
from redrive.contracts import INPUT_ELEMENT_LIMIT, MESSAGE_ELEMENT_LIMIT, RUN_ID_LIMIT, RunInput, StepStatus, Workflow
from redrive.dead_letters import (
    COMMAND_LIMIT,
    COMMANDS,
    PROBLEM_LIMIT,
    Command,
    Continue,
    LetterCommand,
    LetterId,
    Verb,
)
from redrive.documents import check_payload, json_problem, parse_json, validation_sentence
from redrive.errors import InvalidInput, TooLarge
from redrive.field_types import header_problem

M = TypeVar("M", bound=BaseModel)
# For a workflow that was started without any input: without this, its workflow task would fail forever.
NOTHING = RawValue(Payload())
_OUR_OWN = frozenset(Workflow)


def read_input(model: type[M], raw: RawValue) -> M:
    """Return the input of a workflow, or fail the workflow."""
    value, message = _read(model, raw, "the input", MESSAGE_ELEMENT_LIMIT)
    problem = json_problem(value, MESSAGE_ELEMENT_LIMIT)
    if problem:
        raise _refusal(f"the input{problem}")
    return message


def read_no_input(raw: RawValue) -> None:
    """Fail a workflow that takes no input and was given one. Null counts as none."""
    if raw.payload.data not in {b"", b"null"}:
        raise _refusal("the input is unexpected: this workflow takes none")


def read_run_input(raw: RawValue, *, is_continued: bool = False) -> RunInput:
    """Return the run input, or fail the run. One that continues itself was checked before, and may have grown."""
    _, run = _read(RunInput, raw, "the run's input", None if is_continued else INPUT_ELEMENT_LIMIT)
    try:
        check_payload(run.payload)
        _check_state(run)
    except InvalidInput as error:
        raise _refusal(str(error)) from None
    return run


def _read(model: type[M], raw: RawValue, what: str, elements: int | None) -> tuple[object, M]:
    try:
        data = raw.payload.data
        value = from_json(data, allow_inf_nan=False) if elements is None else parse_json(data, elements)
        return value, model.model_validate(value)
    except TooLarge as error:
        raise _refusal(f"{what} has {error}") from None
    except ValidationError as error:
        raise _refusal(f"{what} does not fit: {validation_sentence(error)}") from None
    except ValueError as error:
        raise _refusal(f"{what} is not JSON: {error}") from None


def check_run_id(run_id: str) -> None:
    """Fail a run whose id cannot be sent by its steps or used in its dead letters' ids."""
    problem = header_problem(run_id)
    if problem:
        raise _refusal(f"the workflow's id is sent as an HTTP header and {problem}: start it with another id")
    if len(run_id) > RUN_ID_LIMIT:
        raise _refusal(f"the workflow's id has {len(run_id)} characters; the id of a run has at most {RUN_ID_LIMIT}")


def _check_state(run: RunInput) -> None:
    """Refuse a state that does not belong to these steps: only a run that continues itself sends one."""
    if run.state is None:
        return
    wanted = [step.name for step in run.steps or []]
    done = {step.name for step in run.state.steps if step.status is StepStatus.SUCCESS}
    if [step.name for step in run.state.steps] != wanted or done != run.state.outputs.keys():
        raise InvalidInput("the run's input: state: does not belong to the steps; leave it out")


def _refusal(sentence: str) -> ApplicationError:
    return ApplicationError(sentence, type=Category.VALIDATION, non_retryable=True)


def read_command(arguments: Sequence[RawValue], verb: str | None = None) -> Command | str:
    """Return an operator's command, or what is wrong with it. `verb` is the signal's name, if that determines it."""
    value = _command_document(arguments, verb)
    return value if isinstance(value, str) else _validated_command(value)


def read_addressed_command(
    arguments: Sequence[RawValue], verb: str, tenant: str
) -> tuple[LetterId, LetterCommand] | str:
    """Return a command to a dead letter that it names by `run_id` and `step`, or what is wrong with it."""
    value = _command_document(arguments, verb)
    if isinstance(value, str):
        return value
    run_id, step = value.pop("run_id", None), value.get("step")
    if not (run_id and isinstance(run_id, str) and step and isinstance(step, str)):
        return "run_id and step: a command to a dead letter queue names the dead letter's run and step"
    command = _validated_command(value)
    if isinstance(command, Continue):
        return "`continue` is a command for the run, not for a dead letter"
    if isinstance(command, str):
        return command
    return LetterId(tenant=tenant, run_id=run_id, step=step), command


def _command_document(arguments: Sequence[RawValue], verb: str | None) -> dict[str, Any] | str:
    if verb is not None and verb not in set(Verb):
        return f"{verb[:64]!r} is not a command; there are {', '.join(Verb)}"
    try:
        value = _only(arguments)
    except (ValueError, TooLarge) as error:
        return f"the command is not JSON: {error}"[:PROBLEM_LIMIT]
    # Before anything else walks it: its size may be the problem.
    problem = json_problem(value, MESSAGE_ELEMENT_LIMIT)
    if problem:
        return f"the command{problem}"[:PROBLEM_LIMIT]
    if not isinstance(value, dict):
        return "the command does not fit: it is no JSON object"
    return {**value, "verb": verb} if verb is not None else value


def _validated_command(value: dict[str, Any]) -> Command | str:
    try:
        return COMMANDS.validate_python(value)
    except ValidationError as error:
        return f"the command does not fit: {validation_sentence(error)}"[:PROBLEM_LIMIT]


def read_message(model: type[M], arguments: Sequence[RawValue]) -> M | str:
    """Return a message of another workflow, or what is wrong with it."""
    try:
        value = _only(arguments)
        problem = json_problem(value, MESSAGE_ELEMENT_LIMIT)
        return f"the message{problem}"[:PROBLEM_LIMIT] if problem else model.model_validate(value)
    except ValidationError as error:
        return f"the message does not fit: {validation_sentence(error)}"[:PROBLEM_LIMIT]
    except (ValueError, TooLarge) as error:
        return f"the message is not JSON: {error}"[:PROBLEM_LIMIT]


def _only(arguments: Sequence[RawValue]) -> object:
    if len(arguments) != 1:
        raise ValueError(f"{len(arguments)} arguments; one is needed")
    size = len(arguments[0].payload.data)
    if size > COMMAND_LIMIT:
        raise ValueError(f"{size} bytes; the limit is {COMMAND_LIMIT}")
    return parse_json(arguments[0].payload.data, MESSAGE_ELEMENT_LIMIT)


class OneInput(Interceptor):
    """Refuse a workflow that was started with more than one `--input`."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002, ARG002
        """Return the interceptor that checks the inputs of each workflow."""
        return _OneInput


class _OneInput(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 - the name is the SDK's
        given = len(input.args)
        # A workflow of a module author has the inputs that it has.
        if given > 1 and workflow.info().workflow_type in _OUR_OWN:
            sentence = f"{workflow.info().workflow_type} was given {given} inputs; it takes one JSON document"
            raise ApplicationError(sentence, type=Category.VALIDATION, non_retryable=True)
        return await super().execute_workflow(input)
