"""Get the programs from their registries into a cache directory: Gitea is built with Go, OpenCode comes from npm."""

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from redrive.errors import StackError

GITEA = "1.26.0"
OPENCODE = "1.18.33"
_MODULE = f"code.gitea.io/gitea@v{GITEA}"
_TAGS = "sqlite sqlite_unlock_notify"
# The machine may have other work: two packages at a time, and after everyone else.
_POLITE = ("nice", "-n", "10")


@dataclass(frozen=True)
class Gitea:
    """Gitea's program, and its source, which has the files that it reads at run time."""

    program: Path
    source: Path


def build_gitea() -> Gitea:
    """Build Gitea in a copy of its module: ten minutes or more the first time, nothing later."""
    cache = _cache(f"gitea-{GITEA}")
    made = Gitea(cache / "gitea", cache / "source")
    if not made.program.exists():
        print(f"Building Gitea {GITEA} in {cache} (once; ten minutes or more) ...", flush=True)
        for needed in ("go", "gcc", "git"):
            _need(needed)
        found = _run(["go", "mod", "download", "-json", _MODULE], cache)
        shutil.rmtree(made.source, ignore_errors=True)
        shutil.copytree(_directory(found), made.source, copy_function=shutil.copyfile)
        build = ["go", "build", "-p", "2", "-tags", _TAGS, "-ldflags", f"-X main.Version={GITEA}"]
        # Under another name until it is complete.
        _run([*_POLITE, *build, "-o", str(cache / ".gitea"), "."], made.source)
        (cache / ".gitea").rename(made.program)
    return made


def install_opencode() -> Path:
    """Install OpenCode's program for this machine."""
    cache = _cache(f"opencode-{OPENCODE}")
    package = f"opencode-{platform.system().lower()}-{_ARCHITECTURES.get(platform.machine(), platform.machine())}"
    program = cache / "node_modules" / package / "bin" / "opencode"
    if not program.exists():
        print(f"Installing OpenCode {OPENCODE} in {cache} ...", flush=True)
        _need("npm")
        _run(
            ["npm", "install", "--prefix", str(cache), "--no-save", "--ignore-scripts", f"{package}@{OPENCODE}"], cache
        )
    return program


_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}


def _cache(name: str) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "redrive" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _directory(told: str) -> Path:
    [line] = [line for line in told.splitlines() if '"Dir"' in line]
    return Path(line.split('"')[3])


def _need(program: str) -> None:
    if not shutil.which(program):
        raise StackError(f"NOT RUN: there is no {program} on this machine; install it, then run it again.")


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        raise StackError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout
