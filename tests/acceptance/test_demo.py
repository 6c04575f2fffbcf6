"""`redrive demo`, the first thing that a newcomer sees."""

import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from redrive.starter.demo import SCENES
from redrive.starter.stack.state import find_running
from tests.acceptance.live import COMMAND, environment, until, working_directory

SUMMARY = "6 runs: 6 succeeded, 3 after retries, 1 after a replay. None was lost."


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """One directory for all: the second demo starts on the first one's state, as a user's would."""
    with working_directory() as path:
        yield path


def test_demo_without_a_terminal_tells_the_story(directory: Path) -> None:
    """It ends by itself with exit code 0, all scenes, a summary and links, and leaves nothing running."""
    said = subprocess.run(
        [COMMAND, "demo"], cwd=directory, env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert all(scene.about in said.stdout for scene in SCENES)
    assert SUMMARY in said.stdout
    assert said.stdout.count("/namespaces/default/workflows/run-") == len(SCENES)
    assert "there is no item called 'ghost'" in said.stdout
    assert 'input  {"item":"ghost","quantity":1}' in said.stdout
    assert "the run goes on" in said.stdout
    assert "\x1b[" not in said.stdout
    assert find_running(directory / ".redrive") is None


def test_demo_in_a_terminal_shows_a_live_table(directory: Path) -> None:
    """Runs are seen while they retry, and the summary stands at the end."""
    code, said = _in_terminal(["demo"], directory)
    assert code == 0
    assert "RUNNING" in said
    assert "\x1b[" in said
    assert SUMMARY in said


def test_interrupted_demo_ends_at_once(directory: Path) -> None:
    """Ctrl-C in the middle stops the stack, ends with 130, and leaves no process."""
    demo = _start_demo(directory)
    until(lambda: find_running(directory / ".redrive"))
    family = psutil.Process(demo.pid).children(recursive=True)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(30) == 130
    assert not psutil.wait_procs(family, timeout=30)[1]


def test_demo_keep_leaves_the_stack_running_until_ctrl_c(directory: Path) -> None:
    """Afterwards the stack is found by other commands; Ctrl-C stops all of it with exit code 0."""
    demo = _start_demo(directory, "--keep")
    assert demo.stdout
    lines = iter(demo.stdout.readline, "")
    assert any(line.startswith("Ctrl-C stops everything") for line in lines)
    assert find_running(directory / ".redrive")
    family = psutil.Process(demo.pid).children(recursive=True)
    assert family
    demo.send_signal(signal.SIGINT)
    assert demo.wait(30) == 0
    assert not psutil.wait_procs(family, timeout=30)[1]
    demo.stdout.close()


def _start_demo(directory: Path, *words: str) -> subprocess.Popen[str]:
    out = subprocess.PIPE if words else subprocess.DEVNULL
    return subprocess.Popen([COMMAND, "demo", *words], cwd=directory, env=environment(), stdout=out, text=True)


def _in_terminal(words: list[str], directory: Path, typed: str = "") -> tuple[int, str]:
    """Run a command in a terminal of its own and return its exit code and all that it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, *words],
        cwd=directory,
        env=environment(TERM="xterm", COLUMNS="150", LINES="40"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    try:
        while select.select([ours], [], [], 60)[0]:
            shown += os.read(ours, 65536)
    except OSError:
        # Linux tells the end of a terminal so.
        pass
    finally:
        os.close(ours)
    return process.wait(10), shown.decode()


def test_fresh_asks_before_it_forgets(directory: Path) -> None:
    """Whoever answers no keeps everything."""
    code, said = _in_terminal(["up", "--fresh"], directory, "n\n")
    assert code == 1
    assert "Forget every run and record" in said
    assert "nothing was changed" in said
    assert (directory / ".redrive" / "temporal").is_dir()
