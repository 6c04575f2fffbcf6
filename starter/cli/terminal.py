"""The terminal, or the file that output is redirected to."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from redrive.starter.cli.errors import NotConfirmed

# A column of text is not made narrower than this: a sentence with one word to a line is not readable.
NARROWEST: Final = 20
# Between two columns.
GAP: Final = 2


class Terminal(Console):
    """A console that cuts nothing off: a line that is too long continues on the next, and can be copied as a whole."""

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        """Print as rich does, without cropping, and with commands that can be pasted."""
        super().print(*map(_pasteable, objects), crop=crop, **options)


# Without a terminal there is no width limit; tables are easier to read, and to grep, unwrapped.
console = Terminal(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 240)
errors = Terminal(stderr=True, highlight=False, emoji=False, soft_wrap=True)


class Listing:
    """A table that never cuts a word, such as an id: if it is too wide, each row becomes lines of its own."""

    def __init__(self, *headers: str) -> None:
        self.headers = headers
        self.rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Add a row, with a cell for each header."""
        self.rows.append([cell if isinstance(cell, Text) else Text(cell) for cell in cells])

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.rows:
            return
        columns = zip(self.headers, zip(*self.rows, strict=True), strict=True)
        needs = [_needed_width([Text(header), *cells]) for header, cells in columns]
        if sum(needs) + GAP * len(needs) > options.max_width:
            for row in self.rows:
                yield from self._lines(row, options.max_width)
            return
        table = Table(box=None, header_style="bold")
        for header, need in zip(self.headers, needs, strict=True):
            table.add_column(header, min_width=need)
        for row in self.rows:
            table.add_row(*row)
        yield table

    def _lines(self, row: list[Text], width: int) -> Iterator[Text]:
        """Return a row as lines: its first cell, then the others with their names, as many to a line as fit."""
        first, *others = row
        yield _line(first)
        line = Text()
        for header, cell in zip(self.headers[1:], others, strict=True):
            if not cell.plain:
                continue
            piece = Text.assemble((f"{header} " if header else "", "dim"), cell)
            if line and line.cell_len + GAP + piece.cell_len + GAP > width:
                yield _line(Text("  ") + line)
                line = Text()
            line = line + Text(" " * GAP) + piece if line else piece
        if line:
            yield _line(Text("  ") + line)


class Facts:
    """Names and values, one to a line; no word of a value is cut."""

    def __init__(self, facts: Mapping[str, str | None], indent: int = 0) -> None:
        self.facts = {name: plain(value) for name, value in facts.items() if value}
        self.indent = indent

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        names = max(map(len, self.facts), default=0)
        for name, value in self.facts.items():
            start = f"{' ' * self.indent}{name:<{names}}  "
            if len(start) + _longest_word(value) > options.max_width:
                yield _line(Text(start) + value)
            else:
                row = Table.grid()
                row.add_column(min_width=len(start), no_wrap=True)
                row.add_column()
                row.add_row(Text(start), value)
                yield row


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _needed_width(cells: Sequence[Text]) -> int:
    whole = max(cell.cell_len for cell in cells)
    return max(min(whole, NARROWEST), *map(_longest_word, cells))


def _longest_word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)


Json = Annotated[bool, Parameter(name="--json", help="Print JSON, for scripts.")]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask; needed when there is no terminal to ask on.")]
MOST_ROWS: Final = 10_000
Limit = Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_ROWS), help="Maximum number of rows.")]
LABEL_HELP = "Only those of runs with this label, `name=value`; with several, those that have all of them."


def command_line() -> str:
    """Return what the user can paste to call this command: as `run.py` was called, by its name, or by its path."""
    called_as = os.environ.get("REDRIVE_CALLED_AS")
    return called_as or ("redrive" if shutil.which("redrive") else shlex.quote(sys.argv[0]))


def hint(text: str) -> Text:
    """Return a sentence with a command: not broken into lines, so that the command can be pasted."""
    return _line(Text(_pasteable(text)))


def _pasteable(text: Any) -> Any:
    """Return a text whose commands are written as the user calls them, if that is not `redrive`."""
    called_as = os.environ.get("REDRIVE_CALLED_AS")
    return text.replace("`redrive ", f"`{called_as} ") if called_as and isinstance(text, str) else text


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
