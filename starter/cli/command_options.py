"""What all commands to dead letters share: who gives them and why, and how the answer is shown."""

import getpass
import os
import pwd
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter
from pydantic import ValidationError

from redrive.access import account
from redrive.dead_letters import Answer, Discard, Replay, Resolve, Restart
from redrive.documents import validation_sentence
from redrive.errors import CommandRefused, InvalidInput
from redrive.keys import new_request_id
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, Yes, console

Letter = Annotated[str, Parameter(name="ID", help="The dead letter's id, or its run and step as `run-…/step`.")]
Reason = Annotated[str, Parameter(help="Why; kept in the audit log.")]
By = Annotated[str | None, Parameter(help="Who gives the command; without it, the name of your account.")]
RequestId = Annotated[
    str | None, Parameter(help="The same id again is the same command: it is carried out once and answered alike.")
]


CommandType = TypeVar("CommandType", Replay, Resolve, Discard, Restart)


AssignTo = Annotated[str | None, Parameter(help="Whose it is, of one in quarantine; from then on it is that tenant's.")]


@dataclass(frozen=True)
class AnswerOptions:
    """How a command is carried out."""

    yes: bool
    json: bool
    dry_run: bool = False
    wait: bool = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Giving:
    """The options of every command that is confirmed and answered."""

    reason: Reason
    by: By = None
    request_id: RequestId = None
    yes: Yes = False
    json: Json = False

    @property
    def options(self) -> AnswerOptions:
        """How the command is carried out."""
        return AnswerOptions(yes=self.yes, json=self.json)

    def command(self, kind: type[CommandType], **fields: Any) -> CommandType:
        """Build the command, or raise which field is wrong."""
        return made(kind, by=self.by, reason=self.reason, request_id=self.request_id, **fields)


def asked_by(by: str | None) -> str:
    """Return who gives a command."""
    if by is not None:
        return by
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):
        raise InvalidInput("--by: say who gives the command, this account has no name") from None


def own_person() -> str:
    """Return who is responsible on this command line: the account, whatever `--by` and USER say."""
    try:
        return account(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        return account(str(os.getuid()))


def made(kind: type[CommandType], *, by: str | None, reason: str, request_id: str | None, **fields: Any) -> CommandType:
    """Build a command, or raise which field is wrong."""
    try:
        return kind(request_id=request_id or new_request_id(), requested_by=asked_by(by), reason=reason, **fields)
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from error


def finish(answer: Answer, *, json: bool) -> None:
    """Show the answer to a command, and raise if it was refused."""
    if json:
        print_json(answer)
    if not answer.accepted:
        raise CommandRefused(f"refused: {answer.message}")
    if not json:
        console.print(answer.message, markup=False, soft_wrap=True)
