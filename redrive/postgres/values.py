"""Values that Postgres takes and gives: clean text and JSON, and the base of rows.

A value that Postgres refuses would keep a record from ever being written.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

_MARK = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """Return the text with replacement marks for NUL and lone surrogates, which Postgres cannot store."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", _MARK).encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def clean_or_none(text: str | None) -> str | None:
    """Clean a text that may be missing."""
    return None if text is None else clean(text)


def json_text(value: Any) -> str:
    """Return a value as JSON that a jsonb column accepts."""
    return to_json(_cleaned(value), inf_nan_mode="strings").decode()


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(str(key)): _cleaned(item) for key, item in value.items()}
        case list() | tuple():
            return [_cleaned(item) for item in value]
        case _:
            return value


class Record(BaseModel):
    """The base of what is read: columns of a newer release are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
