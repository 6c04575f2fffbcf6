"""`.env` in the working directory, as an addition to the environment."""

import os
from pathlib import Path

import pytest

from redrive.errors import InvalidInput
from redrive.settings import read_settings


def test_an_env_file_of_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables count as if they were exported; exported ones win, and empty ones are none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {"REDRIVE_TASK_QUEUE": "exported"})
    lines = ("# a comment", "REDRIVE_TASK_QUEUE=of-the-file", 'TEMPORAL_ADDRESS="10.0.0.7:7233"', "DATABASE_URL=")
    (tmp_path / ".env").write_text("\n".join(lines))
    settings = read_settings()
    assert (settings.task_queue, settings.temporal_address) == ("exported", "10.0.0.7:7233")
    assert settings.database_url is None


def test_an_unreadable_env_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are no text give a sentence with the file's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_bytes(b"A=\xff\xfe")
    with pytest.raises(InvalidInput, match=r"^\.env: cannot be read"):
        read_settings()
