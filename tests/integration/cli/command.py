"""The `redrive` command as a process: what is given to it and what it says."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ready_programs

COMMAND = str(Path(sys.executable).with_name("redrive"))
ROOT = ready_programs.ROOT


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
            env=ready_programs.outer_environment() | self.variables | variables,
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
        )

    async def __call__(self, *words: str, stdin: str = "", **variables: str) -> Said:
        """Run a command to its end."""
        environment = ready_programs.outer_environment() | self.variables | variables
        command = ready_programs.ready(ready_programs.COMMAND)
        code, out, err = await command.run(words, self.directory, environment, stdin.encode(), within=60)
        return Said(code, out.decode(), err.decode())
