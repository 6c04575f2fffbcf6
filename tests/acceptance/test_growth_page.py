"""`redrive demo growth`, and the commands of docs/growth.md as they are written there."""

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.starter.growth.stories import DRILLS, TESTS
from redrive.starter.stack.state import find_running
from tests.acceptance.live import COMMAND, ROOT, environment, until, working_directory

PAGE = ROOT / "docs/growth.md"


class Demo:
    """`redrive demo growth --keep` in a directory of its own, and commands beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process = subprocess.Popen(
            [COMMAND, "demo", "growth", "--keep"],
            cwd=directory,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout
        self.lines: list[str] = []
        for line in iter(self._process.stdout.readline, ""):
            self.lines.append(line)
            if line.startswith("Ctrl-C stops everything"):
                break
        self.text = "".join(self.lines)
        export = next(line for line in self.lines if line.startswith("  export "))
        self.variables = dict(word.split("=", 1) for word in shlex.split(export)[1:])

    def say(self, line: str) -> str:
        """Run a command and return what it printed."""
        words = shlex.split(line)
        assert words[0] == "redrive"
        said = subprocess.run(
            [COMMAND, *words[1:]],
            cwd=self.directory,
            env=environment(**self.variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert said.returncode == 0, f"{line}\n{said.stdout}{said.stderr}"
        return said.stdout

    def stop(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        assert self._process.stdout
        self._process.stdout.close()
        return self._process.wait(30)


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """The demo, with the platform still running. Ctrl-C ends it with 0, and leaves nothing."""
    with working_directory() as directory:
        demo = Demo(directory)
        yield demo
        assert demo.stop() == 0
        assert find_running(directory / ".redrive") is None


@pytest.mark.long
def test_demo_shows_every_story_within_a_minute(demo: Demo) -> None:
    """All nine went as they should, from the start of Redis on; how long servers start is told by other tests."""
    told = re.search(r"9 of 9 went as they should, in ([0-9.]+) s", demo.text)
    assert told, demo.text
    assert float(told[1]) < 60
    assert [story.title for story in (*TESTS, *DRILLS) if f"ok      {story.title}" not in demo.text] == []


@pytest.mark.long
def test_commands_of_the_page_are_run_as_written(demo: Demo) -> None:
    """Two events fail, their missions are started, and each replay of the page has the effect that it tells."""
    send, start, replay = ([*block.strip().splitlines()] for block in _blocks())
    for line in send[:-1]:
        demo.say(line)
    until(lambda: demo.say(send[-1]).count("interview.completed") == 2, within=60)
    outputs = [demo.say(line) for line in start]
    assert all("SUCCESS" in said for said in outputs)
    by_letter, failed, named = (demo.say(line) for line in replay)
    assert "SUCCESS" in by_letter
    assert "1 replayed, 0 refused" in failed
    assert "SUCCESS" in named


def _blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
