"""Which server is used: the one that is named, the stack of this directory or of one above it, or none; the exit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.connection import connect_service, connect_temporal, database_url, stack_directory
from redrive.errors import NotConfigured, Unavailable
from redrive.processes.temporal import connect_with_retries
from redrive.settings import Settings
from redrive.starter.stack.state import StateDirectory, holding

NOTHING = {"temporal_address": None, "temporal_profile": None, "database_url": None}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory, with nothing named."""
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "DATABASE_URL", "REDRIVE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_nothing_named_is_an_error_that_says_what_to_set() -> None:
    """Whoever listens at Temporal's usual port is not asked, and no program waits for it."""
    for connect in (connect_temporal, connect_with_retries):
        with pytest.raises(NotConfigured, match="`redrive up`, or set TEMPORAL_ADDRESS"):
            await connect(Settings(**NOTHING))
    with pytest.raises(NotConfigured, match="set DATABASE_URL"):
        database_url(Settings(**NOTHING))


PLACES = [
    ({}, "there is no Temporal server here"),
    ({"REDRIVE_STATE_DIR": "other"}, "other does not run"),
    ({"TEMPORAL_ADDRESS": "127.0.0.1:1"}, "no Temporal server answers at 127.0.0.1:1 "),
    ({"TEMPORAL_ADDRESS": "127.0.0.1:1", "REDRIVE_STATE_DIR": "other"}, "no Temporal server answers at 127.0.0.1:1 "),
    ({"TEMPORAL_PROFILE": "two"}, "no Temporal server answers at 127.0.0.1:2 "),
    ({"TEMPORAL_PROFILE": "two", "TEMPORAL_ADDRESS": "127.0.0.1:1"}, "no Temporal server answers at 127.0.0.1:1 "),
]


@pytest.mark.parametrize(("environment", "said"), PLACES)
async def test_lists_ask_the_server_that_all_else_asks(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], said: str
) -> None:
    """They read no settings; which server it is depends on the same variables, in the same order."""
    (elsewhere / "other").mkdir()
    (elsewhere / "none.toml").write_text('[profile.two]\naddress = "127.0.0.1:2"\n')
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    refusals = []
    for connection in (connect_temporal(Settings()), connect_service()):
        with pytest.raises(Unavailable) as refused:
            await connection
        refusals.append(str(refused.value))
    assert said in refusals[0]
    assert refusals[0] == refusals[1]


async def test_a_state_directory_is_this_stack_or_an_error(elsewhere: Path) -> None:
    """Also while the stack starts, and when a killed one has left its addresses behind."""
    state = elsewhere / ".redrive"
    state.mkdir()
    addresses = json.dumps({"pid": os.getpid(), "temporal_address": "127.0.0.1:1", "database_url": "postgresql://here"})
    with holding(state / "lock"), pytest.raises(Unavailable, match="is starting"):
        await connect_temporal(Settings(**NOTHING))
    (state / "stack.json").write_text(addresses)
    with pytest.raises(Unavailable, match=f"the stack of {state} does not run"):
        await connect_temporal(Settings(**NOTHING))
    with holding(state / "lock"):
        assert database_url(Settings(**NOTHING)) == "postgresql://here"
        with pytest.raises(Unavailable, match=r"no Temporal server answers at 127\.0\.0\.1:1 "):
            await connect_temporal(Settings(**NOTHING))


def test_the_stack_of_a_directory_above_is_found(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody else owns it, or this directory has one."""
    inner = elsewhere / "src" / "modules"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert stack_directory(Settings(**NOTHING)) == inner / ".redrive"
    with StateDirectory(elsewhere / ".redrive") as above:
        assert stack_directory(Settings(**NOTHING)) == above.path
        monkeypatch.setattr("os.geteuid", lambda: 4_000_000)
        assert stack_directory(Settings(**NOTHING)) == inner / ".redrive"
        monkeypatch.undo()
    (inner / ".redrive").mkdir()
    monkeypatch.chdir(inner)
    assert stack_directory(Settings(**NOTHING)) == inner / ".redrive"


BUSY_AT_EXIT = """
import threading, time
from redrive.connection import settle_at_exit

def work():
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        pass
    print("at rest", flush=True)

settle_at_exit()
threading.Thread(target=work, daemon=True).start()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells of its threads")
def test_a_process_ends_when_its_threads_are_at_rest() -> None:
    """One that still runs, as Temporal's do on a busy machine, could crash it."""
    done = subprocess.run([sys.executable, "-c", BUSY_AT_EXIT], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "at rest\n", "")
