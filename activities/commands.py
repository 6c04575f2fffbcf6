"""An operator's command: checked against the run, recorded, signalled to the run.

All in one activity: if the worker dies in between, the next attempt finds the command in the audit log and signals it.
The run may get it twice; it takes a command only for the cycle that it is parked in.
"""

from pydantic import ValidationError
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from redrive.activities.command_checks import CheckedCommand, CommandChecks
from redrive.activities.command_texts import storable
from redrive.contracts import Activity
from redrive.dead_letters import (
    PROBLEM_LIMIT,
    Answer,
    CommandRecorded,
    CommandRequest,
    Discard,
    MalformedCommand,
    ReceivedCommand,
    Replay,
    Restart,
    RunCommand,
    RunSignal,
    status_after,
)
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.postgres.database import Database
from redrive.redaction.redactor import Redactor
from redrive.store.dead_letters import records as dead_letters

log = get_logger(__name__)


class CommandActivities:
    """Take operators' commands."""

    def __init__(
        self, client: Client, database: Database, checks: CommandChecks, redactor: Redactor, metrics: Metrics
    ) -> None:
        self._client = client
        self._database = database
        self._checks = checks
        self._redactor = redactor
        self._metrics = metrics

    @activity.defn(name=Activity.RECORD_COMMAND)
    async def record_command(self, request: CommandRequest) -> CommandRecorded:
        """Accept or refuse a command, record that, and signal it. The same command again gets the first answer."""
        pool = await self._database.pool()
        earlier = await dead_letters.first_answer(pool, request.letter, request.command.request_id)
        if earlier:
            return await self._repeated(request, earlier)
        checked = CheckedCommand(request.refusal) if request.refusal else await self._checks.check(request)
        answer = await self._answer(request, checked)
        self._tell(request, answer, checked)
        if not answer.accepted:
            return CommandRecorded(answer=answer, orphaned=answer.orphaned)
        proof = await dead_letters.proof_of(pool, request.letter, request.command.request_id)
        if proof is None:
            # Another attempt of this activity was faster, and the command's outcome is already known.
            return CommandRecorded(answer=answer)
        if await self._hand_on(request, proof) or isinstance(request.command, Discard):
            return CommandRecorded(answer=answer, under_way=True)
        # The run ended after the check: nobody carries the command out.
        await dead_letters.reopen(pool, request.letter, request.cycle, orphaned=True)
        self._metrics.replayed("orphaned")
        return CommandRecorded(answer=answer, orphaned=True)

    async def _repeated(self, request: CommandRequest, earlier: Answer) -> CommandRecorded:
        """Answer a command that was given before; signal it again if it may not have reached the run."""
        pool = await self._database.pool()
        # Another command under the same id also gets the answer, but is not carried out.
        is_same = earlier.accepted and earlier.status is status_after(request.command)
        proof = await dead_letters.proof_of(pool, request.letter, earlier.request_id) if is_same else None
        if proof is not None:
            await self._hand_on(request, proof)
        return CommandRecorded(answer=earlier, under_way=proof is not None)

    async def _answer(self, request: CommandRequest, checked: CheckedCommand) -> Answer:
        letter, command = request.letter, request.command
        written = storable(command, self._redactor)
        pool = await self._database.pool()
        if checked.problem is None:
            answer = Answer(
                request_id=command.request_id, accepted=True, message=checked.message, status=status_after(command)
            )
            return await dead_letters.put_accepted(pool, letter, written, answer)
        answer = Answer(
            request_id=written.request_id,
            accepted=False,
            message=checked.problem,
            status=request.status,
            orphaned=checked.orphaned,
        )
        return await dead_letters.put_refused(pool, letter, written, answer, orphaned=checked.orphaned)

    @activity.defn(name=Activity.CHECK_COMMAND)
    async def check_command(self, handed: ReceivedCommand) -> str | None:
        """Say why a run must not do what it was told, or return None: the record has accepted exactly this command.

        A refusal is recorded. The run was told by a signal, which anybody who reaches Temporal can send.
        """
        pool = await self._database.pool()
        proof = await dead_letters.proof_of(pool, handed.letter, handed.request_id)
        if proof is not None and proof == handed.proof:
            return None
        problem = (
            f"{handed.verb} {handed.request_id!r} of {handed.requested_by!r} did not go through the dead letter's "
            f"record: send it as the signal {handed.verb.value!r}"
        )
        info = activity.info()
        malformed = MalformedCommand(verb=RunSignal.COMMAND, problem=self._redactor.text(problem)[:PROBLEM_LIMIT])
        await dead_letters.put_malformed(pool, handed.letter, malformed, f"{info.workflow_run_id}:{info.activity_id}")
        log.warning(
            "run.command_refused",
            dlq_id=handed.letter.workflow_id,
            run_id=handed.letter.run_id,
            tenant_id=handed.letter.tenant,
            operation=handed.verb.value,
            request_id=handed.request_id,
            user_id=handed.requested_by,
        )
        return malformed.problem

    async def _hand_on(self, request: CommandRequest, proof: str) -> bool:
        """Signal the run, and return whether it was there."""
        letter, command = request.letter, request.command
        if isinstance(command, Restart):
            return True
        try:
            completed = self._checks.completed(letter.step, command)
            message = RunCommand(step=letter.step, cycle=request.cycle, command=completed, proof=proof)
            await self._client.get_workflow_handle(letter.run_id).signal(RunSignal.COMMAND, message)
        except ValidationError:
            # Sent again with another output, which nobody accepted.
            return False
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    def _tell(self, request: CommandRequest, answer: Answer, checked: CheckedCommand) -> None:
        letter, command = request.letter, request.command
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
            error=checked.problem,
        )
