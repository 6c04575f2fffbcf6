"""What a broker's message carries, for people to look at. Pure.

The bytes are a stranger's. What reads as text is shown as text, without its secrets; the rest is shown as hex.
"""

import codecs
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, Field
from pydantic_core import from_json, to_json

from redrive.redaction import Redactor

SHOWN: Final = 32 * 1024
# Indented, a deeply nested document is many times as long as it came.
WRITTEN: Final = 8 * SHOWN
_HEX_LINE: Final = 32


class Encoding(StrEnum):
    """How bytes are written down."""

    TEXT = "text"
    HEX = "hex"


class Content(BaseModel):
    """What a message carries."""

    encoding: Encoding
    text: str = Field(description="redacted text, or hex in lines of 32 bytes")
    is_cut: bool = Field(description=f"whether this is the beginning alone: {SHOWN} bytes")


def content(body: bytes, redactor: Redactor) -> Content:
    """Write the beginning of a message down. Give one byte more than is shown of one that is longer."""
    is_cut, shown = len(body) > SHOWN, body[:SHOWN]
    text = _text(shown, is_cut=is_cut)
    if text is None:
        lines = (shown[start : start + _HEX_LINE].hex(" ") for start in range(0, len(shown), _HEX_LINE))
        return Content(encoding=Encoding.HEX, text="\n".join(lines), is_cut=is_cut)
    written = _redacted(text, redactor)
    return Content(encoding=Encoding.TEXT, text=written[:WRITTEN], is_cut=is_cut or len(written) > WRITTEN)


def _text(shown: bytes, *, is_cut: bool) -> str | None:
    """Return bytes that are text. A character that was cut in two is left out."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(shown, final=not is_cut)
    except UnicodeDecodeError:
        return None
    return text if all(character >= " " or character in "\t\n\r" for character in text) else None


def _redacted(text: str, redactor: Redactor) -> str:
    """Redact a document field by field, and any other text as text."""
    try:
        document = from_json(text)
    except ValueError:
        document = None
    if isinstance(document, dict | list):
        return to_json(redactor.value(document), indent=2, inf_nan_mode="constants").decode()
    return redactor.text(text)
