#!/usr/bin/env python3
"""Set Redrive up on a bare machine and run it: `python3 run.py demo`, `python3 run.py test`.

Uses only the standard library. The first call creates `.venv` and installs the hash-pinned requirements; later calls
see that nothing changed and start at once. `test` and `check` are for developers of Redrive; every other command goes
to `redrive`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed"
RUNTIME, DEVELOPMENT, SETUP = "requirements.txt", "requirements-dev.txt", "requirements-setup.txt"
# Tests wait more than they compute: four files at a time, each process with its own stack.
SIDE_BY_SIDE = ["--numprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder"]
MEMORY = "/dev/shm"  # noqa: S108  # each test has a directory of its own there
ROOM = 8 * 1024**3
CHECKS = (
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["mypy"],
    ["lint-imports"],
    ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"],
)


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036  # the first thing a user of an older one should read
        sys.exit(f"Redrive needs Python 3.11 or later; this is {sys.version.split()[0]} ({sys.executable}).")
    words = sys.argv[1:] or ["--help"]
    development = words[0] in {"test", "check"}
    with _setup_lock():
        _install(DEVELOPMENT if development else RUNTIME)
    if words[0] == "test":
        _become([str(PYTHON), "-m", "pytest", *(words[1:] or SIDE_BY_SIDE)])
    if words[0] == "check":
        sys.exit(_check())
    _become([str(VENV / "bin" / "redrive"), *words])


def _become(command: list[str]) -> None:
    environment = _with_bytecode(os.environ | {"PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"})
    if "pytest" in command:
        os.chdir(ROOT)
        environment = _with_files_in_memory(environment)
    else:
        # So that commands that it prints can be pasted: `redrive` itself is not on the user's path.
        environment["REDRIVE_CALLED_AS"] = shlex.join(["python3", sys.argv[0]])
    sys.stdout.flush()
    os.execve(command[0], command, environment)  # noqa: S606


def _with_bytecode(environment: dict[str, str]) -> dict[str, str]:
    """Keep compiled code inside `.venv`: without it, compiling takes most of the time that a command needs to start."""
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(VENV / "bytecode")}


def _with_files_in_memory(environment: dict[str, str]) -> dict[str, str]:
    """Keep temporary files in memory if there is room: tests make hundreds of databases, and throw them away."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return environment
    roomy = found.f_bavail * found.f_frsize >= ROOM and os.access(MEMORY, os.W_OK)
    # Programs are installed there too.
    return {"TMPDIR": MEMORY} | environment if roomy and not found.f_flag & os.ST_NOEXEC else environment


def _check() -> int:
    """Run all checks, side by side; print what each says when it ends, in their order."""
    running = [
        subprocess.Popen(
            [str(VENV / "bin" / tool), *rest], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for tool, *rest in CHECKS
    ]
    for check in running:
        print(check.communicate()[0], end="", flush=True)
    return int(any(check.returncode for check in running))


@contextlib.contextmanager
def _setup_lock() -> Iterator[None]:
    """Make two first calls at once install one after the other."""
    try:
        TOOLS.mkdir(exist_ok=True)
        lock = (TOOLS / "lock").open("w")
    except OSError as error:
        sys.exit(f"Cannot write to {ROOT}: {error.strerror}. Clone Redrive to a place you may write to.")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(requirements: str) -> None:
    wanted = _fingerprint(requirements)
    installed = STAMP.read_text().split() if STAMP.exists() else []
    # The development environment holds all that the runtime one does, so either serves a `redrive` command.
    if wanted in installed or (requirements == RUNTIME and _fingerprint(DEVELOPMENT) in installed):
        return
    print(f"Setting up {VENV.name} from {requirements} (once) ...", file=sys.stderr, flush=True)
    STAMP.unlink(missing_ok=True)
    uv = find_uv()
    try:
        if uv:
            _install_with_uv(uv, requirements)
        else:
            _install_with_pip(requirements)
    except subprocess.CalledProcessError as error:
        sys.exit(f"Set-up failed (exit code {error.returncode}): {' '.join(map(str, error.cmd))}")
    STAMP.write_text(wanted)


def _fingerprint(requirements: str) -> str:
    parts = (ROOT / requirements, ROOT / "pyproject.toml")
    content = b"".join(part.read_bytes() for part in parts) + f"{sys.version}{ROOT}{requirements}".encode()
    return hashlib.sha256(content).hexdigest()


def find_uv() -> str | None:
    """Return uv as pinned by its hash, fetched if needed: it installs in seconds what takes pip minutes.

    None if it is unavailable.
    """
    place = TOOLS / "uv"
    stamp = place / "pinned"
    pinned = (ROOT / SETUP).read_text()
    if not stamp.exists() or stamp.read_text() != pinned:
        shutil.rmtree(place, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--target", str(place)]
        # The machine's own uv may be too old to know the options used here: prefer ours.
        if subprocess.call([*command, "-r", SETUP], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            return shutil.which("uv")
        stamp.write_text(pinned)
    return str(place / "bin" / "uv")


def _install_with_uv(uv: str, requirements: str) -> None:
    environment = os.environ | uv_settings()

    def call(*words: str) -> None:
        subprocess.run([uv, *words], cwd=ROOT, env=environment, check=True)

    if not PYTHON.exists():
        call("venv", "--quiet", "--clear", "--python", sys.executable, str(VENV))
    into = ("--quiet", "--python", str(PYTHON))
    call("pip", "sync", *into, "--require-hashes", requirements)
    call("pip", "install", *into, "--no-deps", "--no-build-isolation", "--no-index", "--editable", ".")


def uv_settings() -> dict[str, str]:
    """Pass pip's configuration to uv, which does not read it."""
    settings = {
        "UV_SYSTEM_CERTS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        # Several registries may hold one package; the hashes decide which files are right.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_LINK_MODE": "copy",
    }
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS"}
    for pip_name, uv_name in names.items():
        value = _pip_setting(pip_name)
        if value:
            separator = "," if uv_name == "UV_FIND_LINKS" else " "
            settings[uv_name] = separator.join(value.split())
    return {name: value for name, value in settings.items() if name not in os.environ}


def _pip_setting(name: str) -> str:
    from_environment = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if from_environment:
        return from_environment
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def _install_with_pip(requirements: str) -> None:
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", requirements], cwd=ROOT, check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", "."], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
