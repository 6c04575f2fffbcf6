"""An operator's command: checked, recorded, and answered.

The run has it recorded before it carries it out. If a worker dies in between, the run asks again: the command is found
in the audit log and gets the same answer. A command whose run is gone is carried out here.
"""

import asyncio
from typing import TypeVar, cast

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from redrive.activities.foreign_workflows import ForeignWorkflows
from redrive.contracts import (
    DOCUMENT_LIMIT,
    INPUT_ELEMENT_LIMIT,
    Activity,
    Query,
)
from redrive.dead_letter_client import ANSWER_TIMEOUT, DeadLetters
from redrive.dead_letters import (
    RECORD_BEHIND,
    Answer,
    CommandRecorded,
    CommandRequest,
    Continue,
    Discard,
    LetterCommand,
    LetterId,
    Outcome,
    Replay,
    Resolve,
    Restart,
    RunDocument,
    Verb,
    restarted,
    status_after,
)
from redrive.documents import json_problem, step_input
from redrive.errors import InvalidInput
from redrive.keys import check_identifiers, run_id_for_key, shown_identifier
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.module_edits import check_size, completed_output, edited_input
from redrive.modules import Registry
from redrive.postgres.database import Database
from redrive.reconcile import ENDINGS
from redrive.redaction.redactor import Redactor
from redrive.starts import start_run
from redrive.store.dead_letters import records as dead_letters
from redrive.store.runs import put_continue

_MESSAGES = {
    Verb.REPLAY: "the run goes on",
    Verb.RESOLVE: "the run goes on with the given output",
    Verb.DISCARD: "the run ends FAILED",
}
_FOREIGN_MESSAGES = {
    Verb.REPLAY: "the workflow goes on",
    Verb.RESOLVE: "the workflow goes on with the given result",
    Verb.DISCARD: "the error is raised in the workflow",
}
Command = TypeVar("Command", bound=LetterCommand | Continue)

log = get_logger(__name__)


class CommandChecks:
    """Check commands against modules: what a run, which has no code of its own, cannot check."""

    def __init__(self, registry: Registry, redactor: Redactor) -> None:
        self._registry = registry
        self._redactor = redactor

    def problem(self, request: CommandRequest) -> str | None:
        """Say why a command cannot be carried out, or None."""
        if problem := identifier_problem(request.command):
            return problem
        match request.command:
            case Replay() as command if command.input_patch is not None and request.run:
                return self._patch_problem(command.from_step or request.letter.step, command, request.run)
            case Resolve() as command if request.run:
                return self._output_problem(request.letter.step, command, request.run)
        return None

    def reads(self, run_steps: list[str]) -> dict[str, list[str] | None]:
        """Return which fields of a run's document the modules read today; none: all of them."""
        return {name: self._registry.modules[name].reads for name in run_steps if name in self._registry.modules}

    def completed(self, step: str, command: LetterCommand) -> LetterCommand:
        """Return a command as the run gets it: an output with its model's defaults, as the module would return it."""
        module = self._registry.modules.get(step)
        if not isinstance(command, Resolve) or module is None:
            return command
        return command.model_copy(update={"output": completed_output(module, command.output, self._redactor)})

    def _patch_problem(self, step: str, command: Replay, run: RunDocument) -> str | None:
        module = self._registry.modules.get(step)
        if module is None:
            return f"module {step!r} is not known to this worker: its input cannot be checked"
        patch = command.input_patch or {}
        earlier = run.run.state.patches.get(step, []) if run.run.state else []
        # Each edit is kept and travels with the run: many edits that remove nothing would exceed Temporal's limits.
        kept = [run.document, run.run.state.patches if run.run.state else {}, patch]
        try:
            edited_input(module, step_input(run.document, module.reads), [*earlier, patch], self._redactor)
            check_size("input_patch: payload, outputs and edits together", kept, DOCUMENT_LIMIT)
        except InvalidInput as error:
            return str(error)
        return None

    def _output_problem(self, step: str, command: Resolve, run: RunDocument) -> str | None:
        if step not in self._registry.modules:
            return f"module {step!r} is not known to this worker: the output cannot be checked"
        try:
            completed = self.completed(step, command)
            output = completed.output if isinstance(completed, Resolve) else {}
            check_size("payload and outputs together", run.document | {step: output}, DOCUMENT_LIMIT)
        except InvalidInput as error:
            return str(error)
        return None


class CommandActivities:
    """Take operators' commands."""

    def __init__(
        self,
        client: Client,
        database: Database,
        checks: CommandChecks,
        *,
        redactor: Redactor,
        metrics: Metrics,
        task_queue: str,
    ) -> None:
        self._client = client
        self._database = database
        self._checks = checks
        self._redactor = redactor
        self._metrics = metrics
        self._letters = DeadLetters(client, task_queue)
        self._foreign = ForeignWorkflows(client, database)

    @activity.defn(name=Activity.RECORD_COMMAND)
    async def record_command(self, request: CommandRequest) -> CommandRecorded:
        """Accept or refuse a command to a run, and record that. The same command again gets the first answer."""
        letter, command = request.letter, request.command
        problem = request.refusal or self._checks.problem(request)
        taken = await self._take(request, self._answer(letter, command, problem))
        self._tell(letter, command, taken.answer)
        if not taken.obey:
            return CommandRecorded(answer=taken.answer)
        completed = self._checks.completed(letter.step, command)
        reads = self._checks.reads(request.steps)
        return CommandRecorded(answer=taken.answer, command=completed, reads=reads, listed_later=True)

    async def _take(self, request: CommandRequest, answer: Answer) -> dead_letters.Taken:
        written = storable(request.command, self._redactor)
        try:
            return await dead_letters.take_command(await self._database.pool(), request, written, answer)
        except dead_letters.RecordBehind:
            message = f"the record of {request.letter.workflow_id!r} does not say that its run is parked"
            raise ApplicationError(message, type=RECORD_BEHIND) from None

    def _answer(self, letter: LetterId, command: LetterCommand, problem: str | None) -> Answer:
        if problem is not None:
            return Answer(request_id=shown_identifier(command.request_id), accepted=False, message=problem)
        messages = _FOREIGN_MESSAGES if letter.foreign else _MESSAGES
        message, status = messages.get(command.verb, ""), status_after(command)
        return Answer(request_id=command.request_id, accepted=True, message=message, status=status)

    @activity.defn(name=Activity.PASS_ON_COMMAND)
    async def pass_on_command(self, letter: LetterId, command: LetterCommand) -> Answer:
        """Pass a command on to its run and return the answer. Without a run, carry out what is possible."""
        async with asyncio.timeout(ANSWER_TIMEOUT.total_seconds()):
            if letter.foreign:
                answer = await self._foreign.ask(letter, storable(command, self._redactor))
            else:
                answer = await self._letters.ask_run(letter.run_id, command)
        if answer is None:
            answer = await self._without_run(letter, command)
            self._tell(letter, command, answer)
        return answer

    async def _without_run(self, letter: LetterId, command: LetterCommand) -> Answer:
        pool = await self._database.pool()
        run = await self._description(letter)
        if run and run.status is WorkflowExecutionStatus.RUNNING:
            raise ApplicationError(f"run {letter.run_id!r} did not take the command, but is open")
        if ending := ENDINGS.get(run.status) if run and run.status else None:
            # Its report may still be on its way.
            await dead_letters.put_outcome(pool, letter, Outcome(ending=ending))
        written = storable(command, self._redactor)
        state = await dead_letters.load_state(pool, letter)
        is_open = state is not None and not state.status.closed
        problem, message = await self._carried_out(letter, command, run) if is_open else ("", "")
        answer = self._answer(letter, command, problem)
        if problem is None:
            # Of a replay that was under way, nobody will report the outcome.
            await dead_letters.put_orphaned(pool, letter)
            accepted = answer.model_copy(update={"message": message})
            return await dead_letters.put_accepted(pool, letter, written, accepted)
        return await dead_letters.put_refused(pool, letter, written, answer, orphaned=is_open)

    async def _carried_out(
        self, letter: LetterId, command: LetterCommand, run: WorkflowExecutionDescription | None
    ) -> tuple[str | None, str]:
        """Carry out what needs no run. Return why not, or what to tell the operator."""
        if problem := identifier_problem(command):
            return problem, ""
        if isinstance(command, Discard):
            return None, "the run is gone already; the dead letter is closed"
        if run is None:
            return "the run is not in Temporal any more: its history cannot be read", ""
        if letter.foreign:
            return "the workflow has ended: start it again as you started it, and discard this", ""
        if not isinstance(command, Restart):
            return "the run has ended: `restart` starts a new run from this step", ""
        return await self._restart(letter, run.task_queue)

    async def _restart(self, letter: LetterId, task_queue: str) -> tuple[str | None, str]:
        """Start the next generation of a run that is gone, on its task queue, with the steps before the dead one."""
        try:
            document: RunDocument = await self._client.get_workflow_handle(letter.run_id).query(
                Query.DOCUMENT, result_type=RunDocument
            )
        except WorkflowQueryFailedError as error:
            return f"the run does not answer: {error}", ""
        fresh = restarted(document.run, letter)
        problem = json_problem(fresh.model_dump(mode="json"), INPUT_ELEMENT_LIMIT)
        if problem:
            return f"the run cannot be started again{problem}", ""
        run_id = run_id_for_key(letter.tenant, document.run.key or letter.run_id, fresh.generation)
        # Starting twice gives one run: the id is computed.
        await start_run(self._client, task_queue, run_id, fresh)
        return None, f"started again as {run_id}"

    @activity.defn(name=Activity.RECORD_CONTINUE)
    async def record_continue(self, letter: LetterId, command: Continue, answer: Answer) -> None:
        """Record a `continue` and its answer."""
        written = storable(command, self._redactor)
        await put_continue(await self._database.pool(), letter, written, answer)
        log.info(
            "run.continued",
            run_id=letter.run_id,
            tenant_id=letter.tenant,
            request_id=command.request_id,
            user_id=command.requested_by,
            accepted=answer.accepted,
        )

    async def _description(self, letter: LetterId) -> WorkflowExecutionDescription | None:
        try:
            return await self._client.get_workflow_handle(letter.run_id, run_id=letter.execution).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None

    def _tell(self, letter: LetterId, command: LetterCommand, answer: Answer) -> None:
        if isinstance(command, Replay):
            self._metrics.replayed("accepted" if answer.accepted else "refused")
        log.info(
            "dead_letter.command",
            dlq_id=letter.workflow_id,
            run_id=letter.run_id,
            tenant_id=letter.tenant,
            operation=command.verb.value,
            request_id=command.request_id,
            user_id=command.requested_by,
            accepted=answer.accepted,
            error=None if answer.accepted else answer.message,
        )


def identifier_problem(command: LetterCommand) -> str | None:
    """Say which id of a command may be a secret. Not in a workflow: what counts as one changes with releases."""
    try:
        check_identifiers(request_id=command.request_id, requested_by=command.requested_by)
    except InvalidInput as error:
        return str(error)
    return None


def storable(command: Command, redactor: Redactor) -> Command:
    """Return a command without secrets in its texts. An accepted one keeps its ids: they were checked."""
    texts = {
        "reason": redactor.text(command.reason),
        "request_id": shown_identifier(command.request_id),
        "requested_by": shown_identifier(command.requested_by),
    }
    return cast("Command", command.model_copy(update=texts))
