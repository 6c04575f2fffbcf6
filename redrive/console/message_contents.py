"""The content of a broker's message, for display. Pure.

The bytes are untrusted. Text is shown as text, without its secrets; the rest is shown as hex.
"""

import codecs
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, Field
from pydantic_core import from_json, to_json

from redrive.redaction.redactor import MARGIN, Redactor

SHOWN: Final = 32 * 1024
READ: Final = SHOWN + MARGIN
# Indented, a deeply nested document becomes many times as long.
WRITTEN: Final = 8 * SHOWN
_HEX_LINE: Final = 32


class Encoding(StrEnum):
    """How bytes are shown."""

    TEXT = "text"
    HEX = "hex"


class Content(BaseModel):
    """What a message carries."""

    encoding: Encoding
    text: str = Field(description="redacted text, or hex in lines of 32 bytes, ** for those of secrets")
    is_cut: bool = Field(description=f"whether this is the beginning alone: {SHOWN} bytes")


def content(body: bytes, redactor: Redactor) -> Content:
    """Return the beginning of a message for display. Pass `READ` bytes of a longer one."""
    is_cut = len(body) > SHOWN
    text = _text(body[:READ], is_cut=len(body) > READ)
    if text is None:
        return Content(encoding=Encoding.HEX, text="\n".join(_hex_lines(body[:READ], redactor)), is_cut=is_cut)
    written = redactor.beginning(text, SHOWN, is_cut=len(body) > READ) if is_cut else _redacted(text, redactor)
    return Content(encoding=Encoding.TEXT, text=written[:WRITTEN], is_cut=is_cut or len(written) > WRITTEN)


def _hex_lines(body: bytes, redactor: Redactor) -> Iterator[str]:
    """Return bytes as hex, with `**` for those of a secret that is text among them."""
    pairs = [f"{byte:02x}" for byte in body]
    for start, end in redactor.spans(body.decode("latin-1")):
        pairs[start:end] = ["**"] * (end - start)
    shown = pairs[:SHOWN]
    for start in range(0, len(shown), _HEX_LINE):
        yield " ".join(shown[start : start + _HEX_LINE])


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
