"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; a cell is one line."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
