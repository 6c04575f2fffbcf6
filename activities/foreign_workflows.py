"""Commands to foreign workflows: those that are no pipeline runs and have dead letters by the plugin.

A foreign workflow has no database, and what it answers may be encoded by its users' codec. So it is signalled, has the
command recorded by a workflow of this worker, and its answer is read from the audit log.
"""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from redrive.dead_letters import (
    Answer,
    ForeignSignal,
    LetterCommand,
    LetterId,
    LetterStatus,
    OperationKind,
    OperationOptions,
    Replay,
    Resolve,
    closed_refusal,
)
from redrive.keys import shown_identifier
from redrive.postgres.database import Database
from redrive.run_probe import execution_status
from redrive.store.dead_letters import records as dead_letters
from redrive.store.dead_letters.commands import first_answer
from redrive.store.dead_letters.lists import get_letter

FIRST_PAUSE: Final = timedelta(milliseconds=20)
LONGEST_PAUSE: Final = timedelta(milliseconds=500)


class ForeignWorkflows:
    """Send commands to foreign workflows."""

    def __init__(self, client: Client, database: Database) -> None:
        self._client = client
        self._database = database

    async def ask(self, letter: LetterId, command: LetterCommand) -> Answer | None:
        """Send a command and wait for its answer; None if the workflow has ended or is gone.

        The signal is in the workflow's history when it is sent: whatever crashes then, it is answered and carried out.
        """
        pool = await self._database.pool()
        if earlier := await first_answer(pool, letter, command.request_id):
            return earlier
        if problem := await self._problem(letter, command):
            refused = Answer(request_id=shown_identifier(command.request_id), accepted=False, message=problem)
            return await dead_letters.put_refused(pool, letter, command, refused)
        handle = self._client.get_workflow_handle(letter.run_id, run_id=letter.execution)
        try:
            await handle.signal(ForeignSignal.COMMAND, command)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        return await self._recorded(letter, command)

    async def _recorded(self, letter: LetterId, command: LetterCommand) -> Answer:
        pool, pause = await self._database.pool(), FIRST_PAUSE
        while True:
            if answer := await first_answer(pool, letter, command.request_id):
                return answer
            await asyncio.sleep(pause.total_seconds())
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _problem(self, letter: LetterId, command: LetterCommand) -> str | None:
        """Say why a command is not sent at all, or None."""
        record = await get_letter(await self._database.pool(), letter.tenant, letter.workflow_id)
        if record is None or record.status.closed:
            return closed_refusal(letter, record.status if record else None, command)
        if record.status is LetterStatus.REPLAYING:
            return f"a replay is under way (command of {record.replayed_by!r}): wait for its outcome"
        options = OperationOptions.model_validate(record.config)
        if options.kind is OperationKind.WORKFLOW_TASK and await self._is_open(letter):
            return (
                "the workflow's own code fails, and takes no commands: deploy a fixed worker, and the workflow goes on "
                "and closes this dead letter; or reset or terminate it with Temporal's own tools"
            )
        if options.is_encoded and _has_values(command) and self._client.data_converter.payload_codec is None:
            return (
                "the workflow's data is encoded by a codec that Redrive does not have: an edit or a result would stand "
                "in clear text in its history; replay it as it is, or discard it"
            )
        return None

    async def _is_open(self, letter: LetterId) -> bool:
        status = await execution_status(self._client, letter.run_id, letter.execution)
        return status is WorkflowExecutionStatus.RUNNING


def _has_values(command: LetterCommand) -> bool:
    return isinstance(command, Resolve) or (isinstance(command, Replay) and command.input_patch is not None)
