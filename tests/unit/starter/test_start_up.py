"""What the command line imports: who asks for help or for a list does not wait for libraries that it does not use."""

import subprocess
import sys
from pathlib import Path

import pytest

LARGE = {"temporalio", "asyncpg", "fastapi", "httpx", "pydantic", "pydantic_settings", "structlog", "pygments"}
# Ours with the most models: all messages, those of dead letters, of operations on many, of schedules, the audit log's.
OURS = {"redrive.contracts", "redrive.dead_letters", "redrive.bulk", "redrive.schedules", "redrive.store.audit"}
PROGRAM = f"""
import os, sys
from redrive.starter.cli import main
code = main.run(sys.argv[1:])
loaded = set(sys.modules) & {LARGE | OURS | {"temporalio.client", "asyncio", "importlib.metadata"}}
print(code, *sorted(loaded), file=sys.stderr)
"""


def loaded_by(*words: str, directory: Path | None = None, **environment: str) -> list[str]:
    """Return the exit code of a command, and which of the large libraries it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=directory,
        env=environment or None,
    )
    return done.stderr.splitlines()[-1].split()


def test_help_imports_no_large_library() -> None:
    """`redrive --help` needs neither Temporal's SDK nor a driver, a server or a model. Markdown needs pygments."""
    assert loaded_by("--help") == ["0", "pygments"]


def test_the_version_is_read_when_it_is_asked_for() -> None:
    """It stands in the metadata of the installed package."""
    assert loaded_by("--version") == ["0", "importlib.metadata"]


def test_help_on_runs_imports_no_large_library() -> None:
    """`redrive run list --help` loads neither Temporal's SDK nor a database driver, a server or a model."""
    assert loaded_by("run", "list", "--help") == ["0", "asyncio", "pygments"]


def test_a_list_of_runs_needs_temporals_service_alone(tmp_path: Path) -> None:
    """`redrive run list` is called often: the SDK's client, models and settings would double the time that it takes."""
    refused = loaded_by("run", "list", directory=tmp_path, TEMPORAL_ADDRESS="127.0.0.1:1")
    assert refused == ["1", "asyncio", "temporalio"]


@pytest.mark.parametrize(
    "words",
    [
        ["dlq", "list"],
        ["dlq", "show", "run-1/charge"],
        ["dlq", "stats"],
        ["bulk", "list"],
        ["bulk", "show", "bulk-1"],
    ],
    ids=" ".join,
)
def test_what_reads_records_needs_the_database_alone(tmp_path: Path, words: list[str]) -> None:
    """It loads no Temporal SDK, which is more than all else; no settings, no logs, and no models but its records'."""
    refused = loaded_by(*words, directory=tmp_path, DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert refused == ["1", "asyncio", "asyncpg", "importlib.metadata", "pydantic"]


@pytest.mark.parametrize("words", [["keys", "list"], ["keys", "show", "order:4711"], ["audit", "list"]], ids=" ".join)
def test_keys_and_the_audit_log_are_read_without_settings(tmp_path: Path, words: list[str]) -> None:
    """Only a reset of a key asks Temporal."""
    code, *loaded = loaded_by(*words, directory=tmp_path, DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert code == "1"
    assert {"temporalio", "pydantic_settings", "structlog"}.isdisjoint(loaded)


@pytest.mark.parametrize("words", [["run", "start", "hello"], ["run", "status", "run-1"]], ids=" ".join)
def test_runs_are_started_and_shown_without_the_models_of_others(tmp_path: Path, words: list[str]) -> None:
    """The client of runs is that of dead letters, bulk operations and schedules as well, but not before it is used."""
    code, *loaded = loaded_by(*words, directory=tmp_path, TEMPORAL_ADDRESS="127.0.0.1:1")
    assert (code, "temporalio.client" in loaded, "structlog" in loaded) == ("1", True, False)
    assert [name for name in loaded if name in OURS] == ["redrive.contracts"]
