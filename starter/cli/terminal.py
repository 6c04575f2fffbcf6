"""The terminal, or the file that output is redirected to."""

import sys
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.prompt import Confirm
from rich.text import Text

from redrive.starter.cli.errors import NotConfirmed

# Without a terminal there is no width limit; tables are easier to read, and to grep, unwrapped.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 240)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, Parameter(name="--json", help="Print JSON, for scripts.")]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask; needed when there is no terminal to ask on.")]


def plain(text: str, style: str = "") -> Text:
    """Return foreign text for display: control characters are made visible."""
    return Text("".join(map(_visible, text)), style=style)


def _visible(character: str) -> str:
    return character if character.isprintable() or character in "\n\t" else ascii(character)[1:-1]


def confirm(question: str, *, yes: bool) -> None:
    """Continue only if somebody confirms. The question goes to stderr: stdout is for results."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed("nothing was changed: add --yes when there is no terminal to ask on")
    try:
        agreed = Confirm.ask(plain(question), console=errors, default=False)
    except EOFError:
        agreed = False
    if not agreed:
        raise NotConfirmed("nothing was changed")
