"""Options that commands share which change something: who gives the command and why; and how its answer is shown."""

import getpass
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter
from pydantic import ValidationError

from redrive.access import Right, account
from redrive.documents import validation_sentence
from redrive.errors import CommandRefused, InvalidInput
from redrive.keys import new_request_id
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, Yes, console

if TYPE_CHECKING:
    from redrive.dead_letters import Answer, Discard, Replay, Resolve, Restart

Reason = Annotated[str, Parameter(help="Why; kept in the audit log.")]
By = Annotated[str | None, Parameter(help="Who gives the command; without it, the name of your account.")]
RequestId = Annotated[
    str | None, Parameter(help="The same id again is the same command: it is carried out once and answered alike.")
]
AssignTo = Annotated[str | None, Parameter(help="Whose it is, of one in quarantine; from then on it is that tenant's.")]
RoleName = Annotated[
    str, Parameter(help="`owner` (all tenants), `admin`, `staff` or `viewer`; also `super_admin` and `org_admin`.")
]
Rights = Annotated[
    list[Right] | None,
    Parameter(
        name="--right",
        help="Only this: `read`, `payloads`, `start`, `command`, `tokens`. May be given several times. By default all "
        "that the role has; `payloads` must be named for staff and viewers.",
    ),
]
CommandType = TypeVar("CommandType", bound="Replay | Resolve | Discard | Restart")


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
    def dry_run(self) -> bool:
        """Tell whether only a plan is wanted."""
        return False

    @property
    def wait(self) -> bool:
        """Tell whether to wait for the run to end."""
        return False

    def command(self, kind: type[CommandType], **fields: Any) -> CommandType:
        """Build the command, or raise which field is wrong."""
        request_id, given_by = self.request_id or new_request_id(), asked_by(self.by)
        try:
            return kind(request_id=request_id, requested_by=given_by, reason=self.reason, **fields)
        except ValidationError as error:
            raise InvalidInput(validation_sentence(error)) from error


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GivingReplay(Giving):
    """The options of a replay that can be planned and waited for."""

    dry_run: Annotated[
        bool,
        Parameter(help="Print what would be done (which steps are reused, which run again) and change nothing."),
    ] = False
    wait: Annotated[
        bool,
        Parameter(
            help="Show progress until the run has ended; the exit codes are those of `redrive run start --wait`."
        ),
    ] = False


NewLabels = Annotated[
    list[str] | None,
    Parameter(
        negative=(),
        help="`name=value`, on every log line, span and dead letter of the run; may be given several times.",
    ),
]


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


def finish(answer: "Answer", *, json: bool) -> None:
    """Show the answer to a command, and raise if it was refused."""
    if json:
        print_json(answer)
    if not answer.accepted:
        raise CommandRefused(f"refused: {answer.message}")
    if not json:
        console.print(answer.message, markup=False, soft_wrap=True)


def parse_labels(given: Sequence[str] | None) -> dict[str, str]:
    """Return labels by their names, from the texts of `--label`."""
    pairs = [text.partition("=") for text in given or ()]
    if wrong := next((name for name, equals, _ in pairs if not equals), None):
        raise WrongUsage(f"--label {wrong}: a label is name=value, such as mission_id=42")
    return {name: value for name, _, value in pairs}
