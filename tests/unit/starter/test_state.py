import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from redrive.connection import embedded
from redrive.errors import StackError, Unavailable
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo, StateDirectory, find_running

INFO = StackInfo(
    pid=os.getpid(),
    temporal_address="127.0.0.1:7233",
    namespace="default",
    web_ui="http://127.0.0.1:8233",
    database_url=SecretStr("postgresql://redrive:hush@127.0.0.1/redrive"),
    task_queue="redrive",
    modules=("redrive.examples",),
    workers=(12,),
    children={"temporal": 10, "postgres": 11, "worker": 12},
)


def test_running_stack_is_found_with_its_password(tmp_path: Path) -> None:
    """Another command in the same directory reads where everything is, and can sign in."""
    with StateDirectory(tmp_path) as state:
        state.write_info(INFO)
        found = find_running(tmp_path)
    assert found == INFO
    assert found.database_url.get_secret_value() == "postgresql://redrive:hush@127.0.0.1/redrive"


def test_stopped_stack_is_not_found(tmp_path: Path) -> None:
    """After the stack has stopped there is none to be found."""
    with StateDirectory(tmp_path) as state:
        state.write_info(INFO)
    assert find_running(tmp_path) is None


def test_killed_stack_is_not_found(tmp_path: Path) -> None:
    """A stack.json that a killed owner left behind does not count: nobody holds the lock."""
    with StateDirectory(tmp_path) as state:
        state.write_info(INFO)
        left_behind = state.info.read_text()
    state.info.write_text(left_behind)
    assert find_running(tmp_path) is None


@pytest.mark.parametrize("path", ["absent", "file/below"])
def test_directory_without_state_has_no_stack(tmp_path: Path, path: str) -> None:
    """Looking for a stack where none ever was is no error, and makes nothing."""
    (tmp_path / "file").touch()
    assert find_running(tmp_path / path) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_starting_stack_is_not_found_yet(tmp_path: Path) -> None:
    """A stale stack.json is gone as soon as the next stack begins to start."""
    (tmp_path / "stack.json").write_text("{}")
    with StateDirectory(tmp_path):
        assert find_running(tmp_path) is None


def test_addresses_that_a_crashed_stack_left_are_not_those_of_the_one_that_starts(tmp_path: Path) -> None:
    """The new one holds the lock and has not removed the file yet: a client is not led to the old addresses."""
    with StateDirectory(tmp_path) as state:
        state.write_info(INFO.model_copy(update={"pid": os.getpid() + 1}))
        assert find_running(tmp_path) is None
        with pytest.raises(Unavailable, match="is starting"):
            embedded(Settings(state_dir=tmp_path), "Temporal", "TEMPORAL_ADDRESS", "temporal_address")


def test_stack_of_another_version_is_named(tmp_path: Path) -> None:
    """A stack.json that this version cannot read gives a sentence."""
    with StateDirectory(tmp_path) as state:
        state.info.write_text('{"pid": 1}')
        with pytest.raises(StackError, match="another version of Redrive"):
            find_running(tmp_path)


def test_stack_json_is_private(tmp_path: Path) -> None:
    """Only the owner can read the file with the password, and a dump of the model does not show it."""
    with StateDirectory(tmp_path) as state:
        state.write_info(INFO)
        assert state.info.stat().st_mode & 0o777 == 0o600
        assert json.loads(state.info.read_text())["database_url"].startswith("postgresql://redrive:hush@")
    assert "hush" not in INFO.model_dump_json()
    assert "hush" not in repr(INFO)


def test_second_owner_is_refused_and_told_the_process(tmp_path: Path) -> None:
    """Two processes never share a state directory."""
    refusal = f"already running in {tmp_path} .process {os.getpid()}."
    with StateDirectory(tmp_path), pytest.raises(StackError, match=refusal):
        StateDirectory(tmp_path).__enter__()


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    """A killed owner does not block the next one."""
    script = (
        "import os, sys, pathlib; from starter.stack.state import StateDirectory;"
        "StateDirectory(pathlib.Path(sys.argv[1])).__enter__(); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert killed.returncode == -9
    with StateDirectory(tmp_path):
        pass


def test_new_state_directory_is_closed_to_others(tmp_path: Path) -> None:
    """Others may at most pass through, for the sake of PostgreSQL's account, and see nothing."""
    with StateDirectory(tmp_path / "new") as state:
        assert state.path.stat().st_mode & 0o066 == 0
        assert {path.stat().st_mode & 0o077 for path in (state.logs, state.temporal, state.ready)} == {0}


def test_clear_leaves_what_is_not_ours(tmp_path: Path) -> None:
    """Wiping a state directory that holds other things removes the stack's alone."""
    (tmp_path / "thesis.tex").touch()
    with StateDirectory(tmp_path) as state:
        (state.postgres / "base").mkdir(parents=True)
        (tmp_path / "postgres.password").touch()
        (tmp_path / "postgres.new").mkdir()
        state.clear()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["lock", "thesis.tex"]


@pytest.mark.parametrize("place", ["file/below", "/proc/redrive"])
def test_unwritable_place_gives_path_and_reason(tmp_path: Path, place: str) -> None:
    """A state directory that cannot be made gives a sentence with its path."""
    (tmp_path / "file").touch()
    path = tmp_path / place
    with pytest.raises(StackError, match=f"cannot write {path}: [A-Z].*"):
        StateDirectory(path).__enter__()
