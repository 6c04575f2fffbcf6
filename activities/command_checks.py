"""Checks an operator's command against its run. The run itself is asked: its input is the original."""

from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import (
    DOCUMENT_LIMIT,
    INPUT_ELEMENT_LIMIT,
    PAYLOAD_LIMIT,
    RESULT_LIMIT,
    Query,
    RunInput,
    RunStatus,
    StepSnapshot,
)
from redrive.dead_letters import (
    CommandRequest,
    Discard,
    LetterCommand,
    LetterId,
    Replay,
    Resolve,
    Restart,
    RunDocument,
    Verb,
    restarted,
)
from redrive.documents import json_problem, json_size, patched, step_input, validation_sentence
from redrive.errors import InvalidInput
from redrive.identifiers import check_identifiers
from redrive.keys import run_id_for_key
from redrive.modules import Registry
from redrive.policy import RetryPolicy
from redrive.redaction.redactor import Redactor
from redrive.starts import start_run
from redrive.visibility import summary

_MESSAGES = {
    Verb.REPLAY: "the run goes on",
    Verb.RESOLVE: "the run goes on with the given output",
    Verb.DISCARD: "the run ends FAILED",
}


@dataclass(frozen=True)
class CheckedCommand:
    """Why a command is refused, if it is; otherwise what to tell the operator."""

    problem: str | None = None
    orphaned: bool = False
    message: str = ""


class CommandChecks:
    """Check commands against their runs."""

    def __init__(self, client: Client, registry: Registry, redactor: Redactor, *, task_queue: str) -> None:
        self._client = client
        self._registry = registry
        self._redactor = redactor
        self._task_queue = task_queue

    async def check(self, request: CommandRequest) -> CheckedCommand:
        """Say whether the run conflicts with a command, and whether the run is gone."""
        try:
            # Not in the workflow: what counts as a secret changes with releases.
            check_identifiers(request_id=request.command.request_id, requested_by=request.command.requested_by)
        except InvalidInput as error:
            return CheckedCommand(str(error))
        return await self._check(request)

    async def _check(self, request: CommandRequest) -> CheckedCommand:
        letter, command = request.letter, request.command
        handle = self._client.get_workflow_handle(letter.run_id)
        try:
            description = await handle.describe()
            if _needs_no_document(command) and _waits_at(description, letter.step):
                return CheckedCommand(message=_MESSAGES[command.verb])
            run: RunDocument = await handle.query(Query.DOCUMENT, result_type=RunDocument)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return _gone(command, "the run is not in Temporal any more: its history cannot be read")
            raise
        except WorkflowQueryFailedError as error:
            return CheckedCommand(f"the run does not answer: {error}")
        gone = description.status is not WorkflowExecutionStatus.RUNNING
        if isinstance(command, Restart):
            return (
                await self._restart(letter, run.run) if gone else CheckedCommand("the run is open: replay it instead")
            )
        if gone:
            return _gone(command, "the run has ended: `restart` starts a new run from this step")
        problem = _place_problem(request, run) or self._command_problem(letter, command, run)
        return CheckedCommand(problem, message=_MESSAGES[command.verb])

    def completed(self, step: str, command: LetterCommand) -> LetterCommand:
        """Return a command as the run gets it: an output with its model's defaults, as the module would return it."""
        module = self._registry.modules.get(step)
        if not isinstance(command, Resolve) or module is None:
            return command
        # Through JSON, as a module's own output.
        output = module.output_model.model_validate_json(to_json(command.output))
        return command.model_copy(update={"output": output.model_dump(mode="json")})

    async def _restart(self, letter: LetterId, run: RunInput) -> CheckedCommand:
        """Start the next generation of a run that is gone, with the steps before the dead one done."""
        fresh = restarted(run, letter)
        problem = json_problem(fresh.model_dump(mode="json"), INPUT_ELEMENT_LIMIT)
        if problem:
            return CheckedCommand(f"the run cannot be started again{problem}")
        run_id = run_id_for_key(letter.tenant, run.key or letter.run_id, fresh.generation)
        # Starting twice gives one run: the id is computed.
        await start_run(self._client, self._task_queue, run_id, fresh)
        return CheckedCommand(message=f"started again as {run_id}")

    def _command_problem(self, letter: LetterId, command: LetterCommand, run: RunDocument) -> str | None:
        match command:
            case Replay():
                return self._replay_problem(letter, command, run)
            case Resolve():
                return self._output_problem(letter.step, command, run)
            case Discard() | Restart():
                return None

    def _replay_problem(self, letter: LetterId, command: Replay, run: RunDocument) -> str | None:
        names = [step.name for step in run.steps]
        first = command.from_step or letter.step
        allowed = names[: names.index(letter.step) + 1]
        if first not in allowed:
            return f"from_step {first!r}: not one of the steps up to the failed one ({', '.join(allowed)})"
        snapshot = run.steps[names.index(first)]
        if command.policy is not None:
            try:
                RetryPolicy.model_validate(snapshot.policy.model_dump() | command.policy)
            except ValidationError as error:
                return f"policy: {validation_sentence(error, self._redactor)}"
        return self._patch_problem(snapshot, command, run) if command.input_patch is not None else None

    def _patch_problem(self, snapshot: StepSnapshot, command: Replay, run: RunDocument) -> str | None:
        module = self._registry.modules.get(snapshot.name)
        if module is None:
            return f"module {snapshot.name!r} is not known to this worker: its input cannot be checked"
        patch = command.input_patch or {}
        earlier = run.run.state.patches.get(snapshot.name, []) if run.run.state else []
        unknown = sorted(patch.keys() - set(module.reads)) if module.reads is not None else []
        if unknown:
            known = ", ".join(module.reads or [])
            return f"input_patch.{unknown[0]}: {snapshot.name!r} reads no such field; it reads {known}"
        try:
            edited = patched(step_input(run.document, module.reads), [*earlier, patch])
            module.validate(edited)
        except ValidationError as error:
            sentence = validation_sentence(error, self._redactor)
            return f"input_patch: the edited input does not fit {snapshot.name!r}: {sentence}"
        # Each edit is kept and travels with the run: many edits that remove nothing would exceed Temporal's limits.
        kept = [run.document, run.run.state.patches if run.run.state else {}, patch]
        return _size_problem("input_patch: the edited input", edited, PAYLOAD_LIMIT) or _size_problem(
            "input_patch: payload, outputs and edits together", kept, DOCUMENT_LIMIT
        )

    def _output_problem(self, step: str, command: Resolve, run: RunDocument) -> str | None:
        if step not in self._registry.modules:
            return f"module {step!r} is not known to this worker: the output cannot be checked"
        try:
            completed = self.completed(step, command)
        except ValidationError as error:
            return f"output: does not fit what {step!r} returns: {validation_sentence(error, self._redactor)}"
        output = completed.output if isinstance(completed, Resolve) else {}
        return _size_problem("output", output, RESULT_LIMIT) or _size_problem(
            "payload and outputs together", run.document | {step: output}, DOCUMENT_LIMIT
        )


def _needs_no_document(command: LetterCommand) -> bool:
    """Tell whether a command changes nothing that must match the run's input: only the run's position matters."""
    if isinstance(command, Replay):
        return command.from_step is None and command.input_patch is None and command.policy is None
    return isinstance(command, Discard)


def _waits_at(description: WorkflowExecutionDescription, step: str) -> bool:
    """Tell from Temporal's own data whether the run is parked there, without a query to the run's worker."""
    run = summary(description)
    return (run.status, run.failed_step) == (RunStatus.DLQ_PENDING, step)


def _place_problem(request: CommandRequest, run: RunDocument) -> str | None:
    """Return where the run is, if it does not wait where the command expects it."""
    step = request.letter.step
    if run.parked_at != step:
        where = (
            f"parked at {run.parked_at!r}: send a command to its dead letter first" if run.parked_at else "not parked"
        )
        return f"the run is {where}"
    cycle = next((state.cycle for state in run.run.state.steps if state.name == step), 0) if run.run.state else 0
    if cycle != request.cycle:
        return (
            f"the run is parked in cycle {cycle}, the record tells of cycle {request.cycle}: try again, "
            "or fix it with `redrive reconcile --repair`"
        )
    return None


def _gone(command: LetterCommand, problem: str) -> CheckedCommand:
    """Judge a command for a run that is gone: only a discard needs no run."""
    if isinstance(command, Discard):
        return CheckedCommand(message="the run is gone already; the dead letter is closed")
    return CheckedCommand(problem, orphaned=True)


def _size_problem(what: str, value: object, limit: int) -> str | None:
    size = json_size(value)
    return f"{what}: {size} bytes; the limit is {limit} (pass a reference to large data)" if size > limit else None
