"""The `redrive` command as a process: what is given to it and what it says."""

import asyncio
import functools
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.cli.ready_commands import ReadyCommands

COMMAND = str(Path(sys.executable).with_name("redrive"))
ROOT = Path(__file__).parents[3]
_OURS = ("REDRIVE_", "TEMPORAL_", "DATABASE_URL")


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON that stdout holds, and nothing but it."""
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The refusal on stderr; fails when there is more than that, a traceback above all."""
        first, *rest = self.err.strip().splitlines()
        assert first.startswith("redrive: ")
        assert all(line.startswith("Try `") for line in rest), self.err
        return first.removeprefix("redrive: ")


class CommandLine:
    """Runs commands in a directory of their own."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self.directory = directory
        self.variables = variables

    async def start(self, *words: str, program: str = COMMAND, stdin: int = PIPE, **variables: str) -> Process:
        """Start a command and return without waiting for it."""
        return await asyncio.create_subprocess_exec(
            *(program, *words),
            cwd=self.directory,
            env=_inherited() | self.variables | variables,
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
        )

    async def __call__(self, *words: str, stdin: str = "", **variables: str) -> Said:
        """Run a command to its end."""
        environment = _inherited() | self.variables | variables
        code, out, err = await _ready_commands().run(words, self.directory, environment, stdin.encode(), within=60)
        return Said(code, out.decode(), err.decode())


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)} | {"PYTHONPATH": str(ROOT)}


@functools.cache
def _ready_commands() -> ReadyCommands:
    return ReadyCommands(ROOT, _inherited())
