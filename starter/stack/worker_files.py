"""The files of a stack's workers: the modules' code that they have loaded, and the log lines that they write."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from watchfiles import PythonFilter, awatch

_LOOK: Final = 0.2
_MOST_READ: Final = 64 * 1024
_RECHECK_MS: Final = 1000
_AUTHORS: Final = "module."


def loaded_files(ready: Iterable[Path]) -> frozenset[Path]:
    """Return the author's files that workers have named when they were ready."""
    named: set[Path] = set()
    for file in ready:
        with contextlib.suppress(OSError):
            named.update(Path(line) for line in file.read_text(encoding="utf-8").splitlines())
    return frozenset(named)


async def changed_files(here: Path, loaded: Callable[[], frozenset[Path]]) -> AsyncIterator[set[Path]]:
    """Yield Python files that change, in this directory and in those of loaded files. Raises OSError if it cannot."""
    while True:
        directories = _directories(here, loaded())
        changes_seen = awatch(
            *directories,
            watch_filter=PythonFilter(),
            recursive=False,
            step=50,
            rust_timeout=_RECHECK_MS,
            yield_on_timeout=True,
        )
        try:
            async for changes in changes_seen:
                if changes:
                    yield {Path(path) for _, path in changes}
                # Other directories need another watch: from time to time they are compared.
                if _directories(here, loaded()) != directories:
                    break
        except RuntimeError as error:
            raise OSError(str(error)) from error


def _directories(here: Path, files: Iterable[Path]) -> set[Path]:
    return {here, *(parent for file in files if (parent := file.parent).is_dir())}


class LogTail:
    """What is added to a log from now on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = file.stat().st_size if file.exists() else 0
        self._rest = b""

    def lines(self) -> list[str]:
        """Return whole lines that are new. Of very many, the last ones."""
        try:
            with self._file.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                # A log that grew too long was put aside.
                begin = self._read if self._read <= end else 0
                skipped = end - begin > _MOST_READ
                log.seek(end - _MOST_READ if skipped else begin)
                data = log.read(_MOST_READ)
                self._read = log.tell()
        except OSError:
            return []
        others = data.partition(b"\n")[2] if skipped else self._rest + data
        *whole, self._rest = others.split(b"\n")
        return [line.decode(errors="replace") for line in whole if line.strip()]


async def follow(tails: dict[str, LogTail], show: Callable[[str, str], None]) -> None:
    """Show the new lines of logs, each with the name of its log."""
    while True:
        for name, tail in tails.items():
            for line in tail.lines():
                show(name, line)
        await asyncio.sleep(_LOOK)


def event_for_author(line: str) -> dict[str, Any] | str | None:
    """Return a line that a module's author wants to see: as a log event, or as text that was printed; else None.

    That is what modules log and print, and every warning.
    """
    try:
        event = json.loads(line)
    except ValueError:
        return line
    if not isinstance(event, dict):
        return line
    is_quiet = event.get("level") in ("debug", "info")
    return None if is_quiet and not str(event.get("logger", "")).startswith(_AUTHORS) else event
