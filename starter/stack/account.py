"""The accounts that servers run under if we are root: PostgreSQL refuses root, and no other needs it."""

import os
import pwd
import stat
from pathlib import Path
from typing import Final, NamedTuple

from redrive.errors import StackError

_POSTGRES: Final = "postgres"
# For a server without an account of its own.
_ANYBODY: Final = "nobody"


class Account(NamedTuple):
    """A user of the system that a root process hands a child to."""

    name: str
    uid: int
    gid: int

    def may_enter(self, directory: Path) -> bool:
        """Tell whether this account can reach the contents of a directory."""
        directory = directory.resolve()
        return all(self._has(path, read=False) for path in (directory, *directory.parents))

    def may_run(self, program: Path) -> bool:
        """Tell whether this account can read and run a program."""
        program = program.resolve()
        return self.may_enter(program.parent) and self._has(program, read=True)

    def _has(self, path: Path, *, read: bool) -> bool:
        status = path.stat()
        wanted = stat.S_IXOTH | (stat.S_IROTH if read else 0)
        if status.st_uid == self.uid:
            wanted <<= 6
        elif status.st_gid == self.gid:
            wanted <<= 3
        return status.st_mode & wanted == wanted


def server_account(*names: str) -> Account | None:
    """Find the account for a server, by the names that its packages use; None if we are not root."""
    if os.geteuid() != 0:
        return None
    wanted = (*(names or (_POSTGRES,)), _ANYBODY)
    for name in wanted:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise StackError(
        f"servers are not run as root, and there is no user {' or '.join(map(repr, wanted))}: "
        "run Redrive as a normal user, or name servers of your own (DATABASE_URL, TEMPORAL_ADDRESS, ...)"
    )


def hand_over(directory: Path, account: Account | None) -> None:
    """Create a directory, and make an account the owner of it and its contents, even if root created it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is None or directory.stat().st_uid == account.uid:
        return
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            os.chown(Path(place) / name, account.uid, account.gid, follow_symlinks=False)
    # Last: after a kill half way the next start begins again.
    os.chown(directory, account.uid, account.gid)
