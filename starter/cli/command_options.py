"""Options and arguments that commands share: who gives a command and why, pages, moments and durations as typed.

Also how the answer to a command is shown.
"""

import getpass
import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number
from pydantic import ValidationError

from redrive.access import Right, account
from redrive.documents import validation_sentence
from redrive.errors import CommandRefused, InvalidInput
from redrive.keys import new_request_id
from redrive.postgres.paging import LARGEST_PAGE
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, Yes, console

if TYPE_CHECKING:
    from redrive.dead_letters import Answer, Discard, Replay, Resolve, Restart

Letter = Annotated[
    str,
    Parameter(
        name="ID",
        help="The dead letter's id, `run-…/step`, or `workflow-id/activity`. A beginning that no other has is enough.",
    ),
]
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
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART: Final = r"(\d+(?:\.\d+)?)(ms|[smhdw])"
_DURATION: Final = re.compile(rf"(?:{_PART})+", re.ASCII)


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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Which page of a list, and how it is printed."""

    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=LARGEST_PAGE), help="Maximum number of rows.")] = 20
    cursor: Annotated[str | None, Parameter(help="Where the previous page ended, as printed there.")] = None
    json: Json = False


FIRST_PAGE = PageOptions()


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


def parse_duration(option: str, text: str) -> timedelta:
    """Read `500ms`, `30s`, `1h30m`, `3d`."""
    if not _DURATION.fullmatch(text):
        raise InvalidInput(f"{option} {text!r}: not a duration; write 500ms, 30s, 5m, 2h or 3d")
    try:
        return sum((float(count) * _UNITS[unit] for count, unit in re.findall(_PART, text)), timedelta())
    except OverflowError:
        raise InvalidInput(f"{option} {text!r}: too long") from None


def parse_moment(option: str, text: str | None, now: datetime) -> datetime | None:
    """Read a moment: a duration ago, or ISO 8601, in local time without a zone."""
    if text is None:
        return None
    try:
        if _DURATION.fullmatch(text):
            return now - parse_duration(option, text)
        # Without a zone it is the operator's own.
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{option} {text!r}: not a time; write 2h or 3d for so long ago, or 2026-05-01T10:00 (ISO 8601)"
        ) from None


def parse_labels(given: Sequence[str] | None) -> dict[str, str]:
    """Return labels by their names, from the texts of `--label`."""
    pairs = [text.partition("=") for text in given or ()]
    if wrong := next((name for name, equals, _ in pairs if not equals), None):
        raise WrongUsage(f"--label {wrong}: a label is name=value, such as mission_id=42")
    return {name: value for name, _, value in pairs}


def page_cursor(cursor: str, now: datetime) -> str:
    """Add to a list's cursor the moment that `2h` ago was counted from: the next page belongs to the same list."""
    return f"{int(now.timestamp()):x}:{cursor}"


def read_page_cursor(cursor: str | None, now: datetime) -> tuple[str | None, datetime]:
    """Return the list's own cursor and the moment that times are counted from; without a cursor this second."""
    if cursor is None:
        return None, now.replace(microsecond=0)
    seconds, _, inner = cursor.partition(":")
    try:
        return inner, datetime.fromtimestamp(int(seconds, 16), UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(f"--cursor {cursor[:40]!r}: not one that a list gave: start again without one") from None
