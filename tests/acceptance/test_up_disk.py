"""What `redrive up` does where it cannot write: a disk that is full, and one that is read-only."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.live import COMMAND, environment, working_directory


@contextlib.contextmanager
def disk(options: str) -> Iterator[Path]:
    """A small disk in memory, mounted for as long as the context lasts."""
    with working_directory() as directory:
        place = directory / "disk"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"mode=0711,{options}", "tmpfs", str(place)]
        if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            pytest.skip("no small disk can be mounted here")
        try:
            yield place
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [("size=2m", "is full: "), ("size=2m,ro", "Read-only file system")],
    ids=["full", "read-only"],
)
def test_disk_that_cannot_be_written_is_told_in_a_sentence(options: str, sentence: str) -> None:
    """Exit code 1, a sentence without a stack trace, and no process left behind."""
    with disk(options) as place:
        said = subprocess.run(
            [COMMAND, "up"],
            cwd=place,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        left = [process for process in psutil.process_iter(["cmdline"]) if str(place) in str(process.info["cmdline"])]
    assert said.returncode == 1
    assert sentence in said.stderr
    assert "Traceback" not in said.stderr
    assert left == []
