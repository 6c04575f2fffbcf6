"""The laboratory for workers that are processes of their own: what is broken, and what was called, stands in files."""

import os
from collections.abc import Iterator, MutableSet
from pathlib import Path

from redrive.modules import DEFAULT_REGISTRY
from tests.integration.dead_letters import lab
from tests.integration.dead_letters.lab import Call, Service, register

FOLDER = "REDRIVE_LABORATORY"


class _Names(MutableSet[str]):
    """Names of steps, each a file in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, name: object) -> bool:
        return (self._folder / str(name)).exists()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(file.name for file in self._folder.iterdir()))

    def __len__(self) -> int:
        return len(list(self._folder.iterdir()))

    def add(self, value: str) -> None:
        (self._folder / value).touch()

    def discard(self, value: str) -> None:
        (self._folder / value).unlink(missing_ok=True)


class FiledService(Service):
    """The outside world of one case, seen alike by all processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(broken=_Names(folder / "broken"))
        self._calls = folder / "calls"

    def note(self, call: Call) -> None:
        """Remember a call, also if this process is killed now."""
        with self._calls.open("a") as calls:
            calls.write(f"{call.step}\n")

    @property
    def called(self) -> list[str]:
        """The names of the steps that were called."""
        return self._calls.read_text().split() if self._calls.exists() else []


class _Services(dict[str, Service]):
    def __missing__(self, case: str) -> Service:
        return FiledService(Path(os.environ[FOLDER]) / case)


if FOLDER in os.environ:
    # In the worker, which is told where the files are.
    register(DEFAULT_REGISTRY)
    lab.SERVICES = _Services()
