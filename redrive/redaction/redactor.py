"""Taking secrets out of text and JSON before they are stored, logged or raised. Pure.

A secret is known by the name it stands under (`password`, `api_key`, ...), by its shape (a bearer token, a JWT, a card
number, a private key, a password in a URL), or because it is one of our own. Where two readings of a text differ, the
safe one wins: a word too many is redacted. Redacting twice is the same as redacting once.

The cost is linear in the size of what is redacted, whatever it holds: see `secret_scan`.
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

# So much is read beyond what is kept of a text: a secret that begins in it is seen whole, and hidden.
MARGIN: Final = 4_096
# What is larger is redacted in a thread: its time is not the event loop's.
INLINE: Final = 32 * 1024
# One pass can uncover what the next one finds, such as a name before a mark. What is not done by then is hidden whole.
_MOST_PASSES: Final = 4
# A shorter one would stand in too many words.
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
        """Return the text without the secrets in it."""
        return self._text(text, Effort(MOST_PLACES * _MOST_PASSES))

    def beginning(self, text: str, limit: int, *, is_cut: bool = False) -> str:
        """Return the first characters of a text without its secrets, none of which the limit can cut in two.

        A text that `is_cut` already should have `MARGIN` characters more than are kept.
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
        """Return where the secrets of a text are, in order and apart."""
        return _apart(self._scanner.spans(text, Effort()))

    def value(self, value: Any) -> Any:
        """Return the JSON value without the secrets in it. What is not JSON becomes its redacted text."""
        if type(value) is str:
            return self.text(value)
        return DocumentRedaction(self._scanner, self._names, self._text).redacted(value)

    async def value_aside(self, value: Any) -> Any:
        """Redact a value; a large one in a thread, so that the event loop does not wait for it."""
        return await asyncio.to_thread(self.value, value) if _size(value) > INLINE else self.value(value)

    def is_sensitive(self, key: str) -> bool:
        """Tell whether what stands under this name is secret, whatever it is."""
        return self._names.judge(key) is Sensitivity.ALL

    def _text(self, text: str, effort: Effort) -> str:
        for _ in range(_MOST_PASSES):
            # Each pass has an effort of its own: what was redacted costs no more than before, and stays as it is.
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
    """Return the spans in order, with those that overlap as one."""
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
