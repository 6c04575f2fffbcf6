"""Build Temporal's server and its SQL tool, of the compose file's version, in a scratch module of a cache directory."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from redrive.errors import StackError

ROOT = Path(__file__).parents[2]
_MODULE = "go.temporal.io/server"
_PROGRAMS = {"temporal-sql-tool": f"{_MODULE}/cmd/tools/sql", "temporal-server": f"{_MODULE}/cmd/server"}
# The machine may have other work: one package at a time, and after everyone else.
_POLITE = ("nice", "-n", "10")


@dataclass(frozen=True)
class ServerPrograms:
    """Where the programs are, and the schema files for PostgreSQL that came with them."""

    version: str
    folder: Path
    schemas: Path

    @property
    def server(self) -> str:
        """The server's program."""
        return str(self.folder / "temporal-server")


def compose_version() -> str:
    """Return the version of the server that the compose file runs."""
    found = re.search(r"image: temporalio/server:([\d.]+)@", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    if not found:
        raise StackError("docker-compose.yml names no version of temporalio/server")
    return found[1]


def find_go() -> str:
    """Find Go, or say what is missing."""
    go = shutil.which("go")
    if not go:
        raise StackError(
            "NOT RUN: there is no Go on this machine, and the cluster's server is built with it. "
            "Install Go (https://go.dev/doc/install, or the package golang), then run `make cluster` again."
        )
    return go


def build_server() -> ServerPrograms:
    """Build what is missing: ten minutes or more the first time, nothing later."""
    go, version = find_go(), compose_version()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "redrive" / f"temporal-{version}"
    programs = cache / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    missing = {name: package for name, package in _PROGRAMS.items() if not (programs / name).exists()}
    if missing:
        print(f"Building Temporal {version} in {cache} (once; ten minutes or more) ...", flush=True)
        _prepare_module(go, cache, version)
    for name, package in missing.items():
        # Under another name until it is complete.
        _go(go, cache, "build", "-p", "1", "-o", f"bin/.{name}", package)
        (programs / f".{name}").rename(programs / name)
    source = _go(go, cache, "list", "-m", "-f", "{{.Dir}}", _MODULE).strip()
    return ServerPrograms(version, programs, Path(source) / "schema" / "postgresql" / "v12")


def _prepare_module(go: str, cache: Path, version: str) -> None:
    if not (cache / "go.mod").exists():
        _go(go, cache, "mod", "init", "redrive.cluster")
    _go(go, cache, "get", *(f"{package}@v{version}" for package in _PROGRAMS.values()))


def _go(go: str, cache: Path, *words: str) -> str:
    done = subprocess.run([*_POLITE, go, *words], cwd=cache, check=False, capture_output=True, text=True)
    if done.returncode:
        raise StackError(f"go {' '.join(words)} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout
