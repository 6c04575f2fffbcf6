"""Redaction of text and JSON before they are stored, logged or raised. Pure.

A secret is recognised by its name (`password`, `api_key`, ...), by its shape (a bearer token, a JWT, a card number, a
private key, a password in a URL), or because it is one of our own. Where a text is ambiguous, too much is redacted
rather than too little. Redacting twice gives the same result as redacting once.

The cost is linear in the size of the input, whatever it holds: see `scan`.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from pydantic_core import PydanticSerializationError, to_json

from redrive.redaction.documents import DocumentRedaction
from redrive.redaction.names import Names, Sensitivity
from redrive.redaction.scan import MARK, MOST_PLACES, Effort, Scanner, Span

__all__ = ["INLINE", "MARGIN", "MARK", "Redactor"]

# Read this far beyond what is kept of a text: a secret that begins in it is seen whole, and hidden.
MARGIN: Final = 4_096
# Larger values are redacted in a thread, so that the event loop is not blocked.
INLINE: Final = 32 * 1024
# One pass can uncover what the next one finds, such as a name before a mark. What remains after these is hidden whole.
_MOST_PASSES: Final = 4
# A shorter one would occur in too many words.
_SHORTEST_OWN: Final = 6


class Redactor:
    """Replace secrets by `[redacted]`.

    `extra_keys` are further names whose values are secret, matched whole; `own` are secrets themselves.
    """

    def __init__(self, extra_keys: Iterable[str] = (), own: Iterable[str] = ()) -> None:
        known = {secret for secret in own if len(secret) >= _SHORTEST_OWN and secret not in MARK}
        self._names = Names(extra_keys)
        self._scanner = Scanner(self._names, {written for secret in known for written in _ways_to_write(secret)})

    def text(self, text: str) -> str:
        """Return the text without its secrets."""
        return self._text(text, Effort(MOST_PLACES * _MOST_PASSES))

    def beginning(self, text: str, limit: int, *, is_cut: bool = False) -> str:
        """Return the first characters of a text without its secrets, none of which the limit can cut in two.

        A text that already `is_cut` should have `MARGIN` characters more than are kept.
        """
        redacted = self.text(text[: limit + MARGIN])
        # What was cut in two is at the end of what was read, and shorter than the margin.
        is_cut = is_cut or len(text) > limit + MARGIN
        return redacted[: max(0, min(limit, len(redacted) - MARGIN))] if is_cut else redacted[:limit]

    def end(self, text: str, limit: int) -> str:
        """Return the last characters of a text without its secrets, none of which the limit can cut in two."""
        redacted = self.text(text[-limit - MARGIN :])
        return redacted[-limit:] if len(text) <= limit + MARGIN else redacted[MARGIN:][-limit:]

    def spans(self, text: str) -> list[Span]:
        """Return the spans of a text's secrets, in order and without overlap."""
        return _apart(self._scanner.spans(text, Effort()))

    def value(self, value: Any) -> Any:
        """Return the JSON value without its secrets. What is not JSON becomes its redacted text."""
        if type(value) is str:
            return self.text(value)
        return DocumentRedaction(self._scanner, self._names, self._text).redacted(value)

    async def value_aside(self, value: Any) -> Any:
        """Redact a value; a large one in a thread, so that the event loop does not wait for it."""
        return await asyncio.to_thread(self.value, value) if _size(value) > INLINE else self.value(value)

    def is_sensitive(self, key: str) -> bool:
        """Tell whether any value under this name is secret."""
        return self._names.judge(key) is Sensitivity.ALL

    def _text(self, text: str, effort: Effort) -> str:
        for _ in range(_MOST_PASSES):
            # Each pass has its own effort: redacted parts cost no more than before, and stay unchanged.
            own = Effort(max(0, min(MOST_PLACES, effort.places)))
            available = own.places
            redacted = _replaced(text, _apart(self._scanner.spans(text, own)))
            effort.spend(1 + available - max(0, own.places))
            if redacted == text:
                return text
            text = redacted
        return MARK


def _ways_to_write(secret: str) -> set[str]:
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}


def _apart(spans: list[Span]) -> list[Span]:
    """Return the spans in order, with overlapping ones merged."""
    apart: list[Span] = []
    for span in sorted(spans):
        if apart and span.start < apart[-1].end:
            apart[-1] = Span(apart[-1].start, max(apart[-1].end, span.end))
        else:
            apart.append(span)
    return apart


def _replaced(text: str, spans: list[Span]) -> str:
    pieces, position = [], 0
    for span in spans:
        pieces += [text[position : span.start], MARK]
        position = span.end
    return "".join([*pieces, text[position:]])


def _size(value: Any) -> int:
    try:
        return len(to_json(value))
    except PydanticSerializationError:
        return len(str(value))
