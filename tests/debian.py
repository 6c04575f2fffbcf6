"""Programs of Debian's packages that tests need: installed by the first test that asks, when this is root's machine."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

PATIENCE = 300
# Where Debian keeps servers; the path of somebody who is not root often leaves it out.
SERVERS = "/usr/sbin"


def find(program: str, package: str) -> str:
    """Return where a program is. Where it cannot be had: a failure in CI, a skip elsewhere."""
    if not _where(program) and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(program, package)
    found = _where(program)
    if found:
        return found
    reason = f"no {package}: there is no {program}; install Debian's package {package!r}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _where(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=SERVERS)


def _install(program: str, package: str) -> None:
    """Install a package, one test process after the other: apt refuses to run twice at once."""
    with (Path(tempfile.gettempdir()) / "redrive-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _where(program):
            return
        for words in (["update"], ["install", "--yes", "--no-install-recommends", package]):
            # The package's own service is not wanted: tests start what they need.
            environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
            command = ["apt-get", "--quiet", *words]
            subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE, env=environment)
