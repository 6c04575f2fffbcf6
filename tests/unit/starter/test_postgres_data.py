import asyncio
import os
import sys
from pathlib import Path

import pytest

from redrive.errors import StackError
from redrive.starter.stack.placement import Placement, find_postgres
from redrive.starter.stack.postgres import Passwords, Postgres, check_version, end_leftover, keep_password
from redrive.starter.stack.state import StateDirectory

PAUSE = "import signal; signal.signal(2, signal.SIG_DFL); print(flush=True); signal.pause()"


async def test_leftover_server_of_our_data_is_ended(tmp_path: Path) -> None:
    """A server that a killed owner left behind makes room for the next."""
    command = [sys.executable, "-c", PAUSE, "postgres", "-D", str(tmp_path)]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout
    await server.stdout.readline()
    (tmp_path / "postmaster.pid").write_text(f"{server.pid}\n{tmp_path}\n")
    await end_leftover(tmp_path)
    assert await server.wait() == -2


async def test_process_that_only_has_the_number_is_left_alone(tmp_path: Path) -> None:
    """A number that belongs to somebody else by now is no reason to end them, nor to refuse the start."""
    (tmp_path / "postmaster.pid").write_text(f"{os.getpid()}\n{tmp_path}\n")
    await end_leftover(tmp_path)
    assert not (tmp_path / "postmaster.pid").exists()


@pytest.mark.parametrize("text", [None, "", "what\n"])
async def test_no_recorded_server_is_fine(tmp_path: Path, text: str | None) -> None:
    """After a clean stop there is nothing to end, and what cannot be read is left for PostgreSQL to judge."""
    if text is not None:
        (tmp_path / "postmaster.pid").write_text(text)
    await end_leftover(tmp_path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if text is None else [text])


def test_data_of_another_version_is_refused(tmp_path: Path) -> None:
    """PostgreSQL cannot read the data of another major version: say so before it fails."""
    (tmp_path / "PG_VERSION").write_text("12\n")
    with pytest.raises(StackError, match="was made by PostgreSQL 12 and this is 18"):
        check_version(Placement(find_postgres(), tmp_path, None))


def test_password_is_made_once_and_private(tmp_path: Path) -> None:
    """The password stays as long as the data does, and only the owner can read it."""
    state = StateDirectory(tmp_path)
    password = keep_password(state, tmp_path / "postgres")
    (tmp_path / "postgres").mkdir()
    assert len(password) > 30
    assert keep_password(state, tmp_path / "postgres") == password
    assert (tmp_path / "postgres.password").stat().st_mode & 0o777 == 0o600


def test_lost_password_is_told(tmp_path: Path) -> None:
    """Data without its password cannot be used: the sentence says what to do."""
    (tmp_path / "postgres").mkdir()
    with pytest.raises(StackError, match="--fresh"):
        keep_password(StateDirectory(tmp_path), tmp_path / "postgres")


def test_server_listens_on_loopback_without_a_socket_file(tmp_path: Path) -> None:
    """Nobody outside this machine reaches it, and the password is in no command line."""
    server = Postgres(
        Placement(tmp_path, tmp_path / "data", None), port=15_999, passwords=Passwords("hush", "hush", "hush")
    )
    assert "listen_addresses=127.0.0.1" in server.command
    assert "unix_socket_directories=" in server.command
    assert not any("hush" in word for word in server.command)
    assert server.url == "postgresql://redrive_app:hush@127.0.0.1:15999/redrive"
    assert server.owner_url == "postgresql://redrive:hush@127.0.0.1:15999/redrive"
