"""The console process of a stack as a program."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

from starter.stack.child import Program
from starter.stack.ports import LOOPBACK, listens

CONSOLE_PORT: Final = 8300


def console_address(port: int) -> str:
    """Return where the console is, for browsers."""
    return f"http://{LOOPBACK}:{port}"


def console_program(environment: Mapping[str, str], port: int, web_ui: str | None) -> Program:
    """Describe the console; it is ready when it listens."""
    own = {"REDRIVE_CONSOLE_ADDRESS": f"{LOOPBACK}:{port}", **({"REDRIVE_WEB_UI": web_ui} if web_ui else {})}
    return Program(
        name="console",
        title="the console",
        command=[sys.executable, "-m", "console"],
        environment={**environment, **own},
        ready=partial(listens, port),
    )
