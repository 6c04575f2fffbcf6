"""The second approver: with `REDRIVE_APPROVALS=on` an edit is carried out once another admin has approved it."""

import hashlib
from typing import Any, Final

from pydantic_core import to_json

from redrive.access import Principal
from redrive.console.problems import Refusal
from redrive.dead_letters import LetterCommand, Replay, Resolve
from redrive.postgres.tenancy import Pool, transaction
from redrive.redaction.redactor import Redactor
from redrive.store.approvals import ApprovalRequest, ask_approval, use_approval
from redrive.store.dead_letters.models import LetterRecord

_IDENTITY: Final = {"request_id", "requested_by", "reason"}


def is_edit(command: LetterCommand) -> bool:
    """Tell whether a command puts in the operator's own data: an edited input, or an output."""
    return isinstance(command, Resolve) or (isinstance(command, Replay) and command.input_patch is not None)


def plan_hash(record: LetterRecord, command: LetterCommand) -> str:
    """Return the hash of this command to this version of a dead letter, whoever gives it and why."""
    document = {
        "letter": record.id,
        "version": record.version,
        "command": command.model_dump(mode="json", exclude=_IDENTITY),
    }
    return hashlib.sha256(to_json(_sorted(document))).hexdigest()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


async def check_approval(
    pool: Pool, redactor: Redactor, record: LetterRecord, command: LetterCommand, caller: Principal
) -> None:
    """Use another admin's approval of an edit; without one, ask for it and refuse."""
    named = plan_hash(record, command)
    async with transaction(pool, record.tenant) as connection:
        if await use_approval(connection, record.tenant, named, command.request_id):
            return
    asking = ApprovalRequest(
        about=record.letter,
        plan_hash=named,
        plan=await redactor.value_aside(command.model_dump(mode="json", exclude=_IDENTITY, exclude_none=True)),
        reason=redactor.text(command.reason),
        requested_by=caller.name,
        person=caller.person,
    )
    await ask_approval(pool, asking)
    raise Refusal(
        409,
        "approval_needed",
        f"the edit of {record.id} waits for another admin, as plan {named}",
        f"another admin approves it within an hour with POST /api/v1/approvals/{named}; then send this request again",
    )
