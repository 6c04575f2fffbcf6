"""The account that PostgreSQL runs under: it refuses to be root."""

import os
import pwd
import stat
from pathlib import Path
from typing import Final, NamedTuple

from redrive.errors import StackError

_NAMES: Final = ("postgres", "nobody")


class Account(NamedTuple):
    """A user of the system that a root process hands a child to."""

    name: str
    uid: int
    gid: int

    def may_enter(self, directory: Path) -> bool:
        """Tell whether this account can reach what lies in a directory."""
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


def server_account() -> Account | None:
    """Find the account for servers that will not run as root; None when we are not root ourselves."""
    if os.geteuid() != 0:
        return None
    for name in _NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise StackError(
        "PostgreSQL will not run as root, and there is no user 'postgres' or 'nobody': "
        "run Redrive as a normal user, or set DATABASE_URL"
    )
