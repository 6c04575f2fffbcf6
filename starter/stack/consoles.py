"""The console process of a stack as a program."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

from redrive.starter.stack.child import Program
from redrive.starter.stack.ports import LOOPBACK, listens

CONSOLE_PORT: Final = 8300


def console_address(port: int) -> str:
    """Return the console's address for browsers."""
    return f"http://{LOOPBACK}:{port}"


def console_program(environment: Mapping[str, str], port: int, **settings: str | None) -> Program:
    """Describe the console, with its own settings; it is ready when it listens."""
    own = {"REDRIVE_CONSOLE_ADDRESS": f"{LOOPBACK}:{port}"}
    own |= {f"REDRIVE_{name.upper()}": value for name, value in settings.items() if value}
    return Program(
        name="console",
        title="the console",
        command=[sys.executable, "-m", "redrive.processes.console"],
        environment={**environment, **own},
        ready=partial(listens, port),
    )
