"""What the command line imports: those who ask for help do not wait for libraries that help does not use."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from redrive.starter.cli import main
code = main.run(sys.argv[1:])
loaded = {name.partition(".")[0] for name in sys.modules}
print(code, *sorted(loaded & {"temporalio", "asyncpg", "fastapi", "httpx", "pydantic", "structlog"}), file=sys.stderr)
"""


def loaded_by(*words: str) -> list[str]:
    """Return the exit code of a command, and which of the large libraries it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stderr.split()


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_imports_no_large_library(word: str) -> None:
    """`redrive --help` and `--version` need neither Temporal's SDK nor a driver, a server or a model."""
    assert loaded_by(word) == ["0"]


def test_help_on_runs_imports_models_alone() -> None:
    """`redrive run list --help` loads neither Temporal's SDK nor a database driver, an HTTP client or a server."""
    assert loaded_by("run", "list", "--help") == ["0", "pydantic"]
