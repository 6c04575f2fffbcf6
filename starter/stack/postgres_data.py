"""The data directory of the embedded PostgreSQL: created once, kept, and used by one server at a time."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final

from redrive.errors import StackError
from redrive.starter.stack.leash import leashed
from redrive.starter.stack.placement import Placement

_ENDINGS: Final = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))


async def create_data(placement: Placement, *, user: str, password: str) -> None:
    """Create the data directory, with one superuser who needs a password."""
    # Under another name until it is complete: a kill half way must not leave a directory that looks like data.
    draft = placement.data.with_name("postgres.new")
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir(mode=0o700, parents=True)
    if placement.account:
        os.chown(draft, placement.account.uid, placement.account.gid)
    await _initdb(placement, draft, user, password)
    draft.rename(placement.data)


def check_version(placement: Placement) -> None:
    """Refuse data of another major version, which the server could not read."""
    made_by = (placement.data / "PG_VERSION").read_text(encoding="utf-8").strip()
    answer = subprocess.run([placement.program("postgres"), "--version"], capture_output=True, text=True, check=True)
    ours = answer.stdout.split()[2].split(".")[0]
    if made_by != ours:
        raise StackError(
            f"the data in {placement.data} was made by PostgreSQL {made_by} and this is {ours}: "
            "move it with pg_dump, or start over with --fresh"
        )


async def end_leftover(data: Path) -> None:
    """End a server that a killed stack left behind in the data directory. The caller holds the stack's lock."""
    pid = _recorded_pid(data)
    if pid is None or not _alive(pid):
        return
    if not _serves(pid, data):
        # Another process has this number by now, and the server would refuse to start because of it.
        (data / "postmaster.pid").unlink(missing_ok=True)
        return
    for ending, timeout in _ENDINGS:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, ending)
        if await _gone(pid, timeout):
            return
    raise StackError(f"a PostgreSQL that was left behind (process {pid}) does not end: end it and try again")


async def _initdb(placement: Placement, data: Path, user: str, password: str) -> None:
    account = placement.account
    owner = (account.uid, account.gid) if account else None
    command = [
        *(placement.program("initdb"), "--pgdata", str(data), "--username", user, "--pwfile", "/dev/stdin"),
        *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"),
    ]
    secret = _pipe(password, owner)
    try:
        process = await asyncio.create_subprocess_exec(
            *leashed(command, uid_gid=owner, death_signal=signal.SIGKILL),
            stdin=secret,
            stdout=PIPE,
            stderr=STDOUT,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(secret)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        lines = output.decode(errors="replace").strip().splitlines()[-6:]
        raise StackError(f"PostgreSQL cannot make its data in {data}:\n" + "\n".join(f"  {line}" for line in lines))


def _pipe(text: str, owner: tuple[int, int] | None) -> int:
    """Return the reading end of a pipe that holds a text: no file and no command line ever shows it."""
    reading, writing = os.pipe()
    if owner:
        os.fchown(reading, *owner)
    os.write(writing, text.encode() + b"\n")
    os.close(writing)
    return reading


def _recorded_pid(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _serves(pid: int, data: Path) -> bool:
    """Tell whether a process is a PostgreSQL server of this data directory."""
    words = _command_line(pid)
    return "postgres" in words and str(data) in words


def _command_line(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    if Path("/proc/self").exists():
        return ""
    command = ["ps", "-p", str(pid), "-o", "command="]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


async def _gone(pid: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while _alive(pid):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True
