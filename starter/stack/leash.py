"""Runs a program that dies with its parent, and under its own account: a script that ends in the program.

A script and not `preexec_fn`: Python code between fork and exec is unsafe in a process with threads, and Temporal's
client has many. It imports only the standard library, because it runs before anything else is available. Only Linux
lets a child die with its parent; elsewhere the next `up` ends a PostgreSQL that was left behind.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def leashed(command: Sequence[str], *, uid_gid: tuple[int, int] | None, death_signal: signal.Signals) -> list[str]:
    """Build the command line that runs `command` on a leash held by this process."""
    account = f"{uid_gid[0]}:{uid_gid[1]}" if uid_gid else "-"
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(death_signal)), account, *command]


def main(parent: str, death_signal: str, account: str, *command: str) -> None:
    """Become the account, ask to die with the parent, and turn into the program."""
    if account != "-":
        uid, gid = (int(part) for part in account.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of account, which would undo it.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal))
    if os.getppid() != int(parent):
        sys.exit("the parent is gone")
    try:
        os.execv(command[0], command)  # noqa: S606 - the command is ours, and no shell is wanted
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
