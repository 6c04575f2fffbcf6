"""Programs of Debian's packages that tests need, installed when this is root's machine.

By the first test that asks; before all tests of a whole run, `python -m tests.debian` begins with it beside them.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

PATIENCE = 300
# Where Debian keeps servers; the path of somebody who is not root often leaves it out.
SERVERS = "/usr/sbin"
PACKAGES = ("rabbitmq-server", "chromium-headless-shell")


def find(program: str, package: str) -> str:
    """Return where a program is. Where it cannot be had: a failure in CI, a skip elsewhere."""
    # Also when it is there: somebody may be in the middle of installing it.
    if _may_install():
        _install({program: package})
    return _where(program) or _give_up(f"no {package}: there is no {program}; install Debian's package {package!r}")


def _give_up(reason: str) -> NoReturn:
    import pytest  # noqa: PLC0415  # `python3 -m tests.debian` may run before it is installed

    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _where(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=SERVERS)


def _may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install(wanted: Mapping[str, str]) -> None:
    """Install the packages of programs that are missing, one process after the other: apt refuses to run twice."""
    with Path(shutil.which("apt-get") or "").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [package for program, package in wanted.items() if not _where(program)]
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *missing]) if missing else ():
            # The package's own service is not wanted: tests start what they need.
            environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
            command = ["apt-get", "--quiet", *words]
            subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE, env=environment)


if __name__ == "__main__" and _may_install():
    _install({name: name for name in PACKAGES})
