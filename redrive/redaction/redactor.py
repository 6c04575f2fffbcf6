"""Redaction of text and JSON before they are stored, logged or raised. Pure.

A secret is recognised by its name (`password`, `api_key`, ...), by its shape (a bearer token, a JWT, a card number, a
private key, a password in a URL), or because it is one of our own. Where a text is ambiguous, too much is redacted
rather than too little. Redacting twice gives the same result as redacting once.

The cost is linear in the size of the input, whatever it holds: see `scan`. A document is copied in tight loops, and its
texts are collected. They are searched as one for suspicious places; only texts with such a place are examined. So a
document of many small values costs about as much as one large text.
"""

import asyncio
import bisect
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

from pydantic_core import PydanticSerializationError, to_json

from redrive.contracts import DEPTH_LIMIT
from redrive.redaction.card_numbers import is_card
from redrive.redaction.names import LONGEST_NAME, NAMED, NAMING, Names, Sensitivity
from redrive.redaction.scan import MARK, MOST_PLACES, Effort, Scanner, Span, argument_of

# A shorter text has no room for a name and a value, or for a secret of any known shape.
_SHORTEST_TEXT: Final = 4
_LEAST_CARD: Final = 10**12
_SEPARATOR: Final = "\n\0\n"
_NO_SECRETS: Final = frozenset({bool, type(None)})
_NUMBERS: Final = frozenset({int, float})
_CONTAINERS: Final = frozenset({dict, list})
_MANY_KINDS: Final = frozenset({object})
_FEW: Final = 8
# Documents with more than this were made to cost time, or are too large to read: the rest is hidden.
_MOST_PLACES: Final = 1_500
_MOST_CONTAINERS: Final = 20_000
__all__ = ["INLINE", "MARGIN", "MARK", "Redactor"]
# Read this far beyond what is kept of a text: a secret that begins in it is seen whole, and hidden.
MARGIN: Final = 4_096
# Larger values are redacted in a thread, so that the event loop is not blocked.
INLINE: Final = 32 * 1024
# One pass can uncover what the next one finds, such as a name before a mark. What remains after these is hidden whole.
_MOST_PASSES: Final = 4
# A shorter one would occur in too many words.
_SHORTEST_OWN: Final = 6


def _spellings(*words: str) -> frozenset[str]:
    return frozenset(itertools.chain.from_iterable((word, word.capitalize(), word.upper()) for word in words))


_NAMING: Final = _spellings(*NAMING)


_NAMED: Final = _spellings(*NAMED)


class DocumentRedaction:
    """The redaction of one document, used once. `text` removes the secrets of one text, within an effort."""

    def __init__(self, scanner: Scanner, names: Names, text: Callable[[str, Effort], str]) -> None:
        self._scanner = scanner
        self._names = names
        self._text = text
        self._effort = Effort(_MOST_PLACES)
        self._containers = 0
        self._texts: list[str] = []
        # The position of each text: its container, and its name or index there.
        self._holders: list[Any] = []
        self._places: list[Any] = []
        self._objects: list[dict[Any, Any]] = []
        self._pairs: list[list[Any]] = []
        self._options: list[tuple[list[Any], int]] = []
        self._telling: dict[str, bool] = {}

    def redacted(self, value: Any) -> Any:
        """Return the document without its secrets."""
        holder = [value]
        self._copy([value], holder)
        self._redact_texts()
        if self._telling:
            self._hide_named()
        for items, index in self._options:
            self._hide_argument(items, index)
        self._redact_members()
        return holder[0]

    def _copy(self, source: Any, copy: Any) -> None:
        """Copy objects and lists, and collect each text with its position."""
        pending = [(source, copy, 0)]
        while pending:
            source, copy, depth = pending.pop()
            if type(copy) is list and self._is_of_one_kind(copy):
                continue
            for place, item in source.items() if type(copy) is dict else enumerate(source):
                kind = type(item)
                if kind is str:
                    if len(item) >= _SHORTEST_TEXT or item[:1] == "-":
                        self._note(item, copy, place)
                elif kind is int or kind is float:
                    if item >= _LEAST_CARD and is_card(item):
                        copy[place] = MARK
                elif self._containers > _MOST_CONTAINERS and kind in _CONTAINERS:
                    copy[place] = MARK
                elif kind not in _NO_SECRETS and (item or kind not in _CONTAINERS):
                    copy[place] = inner = self._inner(item, copy, place, depth)
                    if inner and type(inner) is not str:
                        pending.append((item, inner, depth + 1))

    def _is_of_one_kind(self, copy: list[Any]) -> bool:
        """Handle a list of texts, or of small numbers, at once: there may be a hundred thousand of them."""
        kinds = set(map(type, copy)) if len(copy) > _FEW else _MANY_KINDS
        if kinds == {str}:
            self._texts += copy
            self._holders += itertools.repeat(copy, len(copy))
            self._places += range(len(copy))
            self._options += [(copy, index) for index, text in enumerate(copy) if text[:1] == "-"][:_MOST_PLACES]
            return True
        return kinds <= _NUMBERS and max(copy) < _LEAST_CARD

    def _note(self, text: str, holder: Any, place: Any) -> None:
        self._texts.append(text)
        self._holders.append(holder)
        self._places.append(place)
        if text[:1] == "-" and type(holder) is list:
            self._options.append((holder, place))

    def _inner(self, item: Any, holder: Any, place: Any, depth: int) -> Any:
        """Return a copy of an object or a list; for anything else that is not JSON, its text."""
        if isinstance(item, dict | list | tuple | set | frozenset):
            self._containers += 1
            if depth > DEPTH_LIMIT or self._containers > _MOST_CONTAINERS:
                return MARK
            if isinstance(item, dict):
                members = dict(item)
                self._objects.append(members)
                return members
            items = list(item)
            if len(items) == 2:
                self._pairs.append(items)
            return items
        text = str(item)
        if text:
            self._note(text, holder, place)
        return text

    def _redact_texts(self) -> None:
        for index in self._to_look_at(self._texts):
            if not self._effort.spend():
                for rest in range(index, len(self._texts)):
                    self._holders[rest][self._places[rest]] = MARK
                return
            shown = self._text(self._texts[index], self._effort)
            self._holders[index][self._places[index]] = shown
            if len(shown) <= LONGEST_NAME:
                self._telling[shown] = self._is_secret_name(shown)

    def _to_look_at(self, texts: list[str]) -> Iterator[int]:
        """Iterate over the texts that contain anything that a secret can begin with."""
        joined = _SEPARATOR.join(texts).encode("ascii", "replace").lower() + b"\n"
        place = self._scanner.next_place(joined, 0)
        if place < 0:
            return
        begins = list(itertools.accumulate((len(text) + len(_SEPARATOR) for text in texts), initial=0))
        while place >= 0:
            index = bisect.bisect_right(begins, place) - 1
            yield index
            following = begins[index + 1]
            place = self._scanner.next_place(joined, following) if following < len(joined) else -1

    def _is_secret_name(self, text: str) -> bool:
        return not any(mark in text for mark in "=:\n") and self._names.judge(text) is Sensitivity.ALL

    def _hide_named(self) -> None:
        """Hide the value in `{"name": "DB_PASSWORD", "value": ...}`, and in `["DB_PASSWORD", ...]`."""
        for members in self._objects:
            naming = [members[name] for name in _NAMING if name in members] if not _NAMING.isdisjoint(members) else ()
            if any(type(name) is str and self._telling.get(name) for name in naming):
                for name in _NAMED & members.keys():
                    members[name] = _hidden(members[name], Sensitivity.ALL)
        for pair in self._pairs:
            if type(pair[0]) is str and self._telling.get(pair[0]):
                pair[1] = _hidden(pair[1], Sensitivity.ALL)

    def _hide_argument(self, items: list[Any], index: int) -> None:
        """Hide the argument of a command line option: `["--password", ...]`, `["-u", "user:..."]`."""
        option, argument = items[index], items[index + 1] if index + 1 < len(items) else None
        if type(argument) is str:
            items[index + 1] = argument_of(option, argument, is_secret=self._telling.get(option, False))

    def _redact_members(self) -> None:
        """Hide values under sensitive names, and names that are secrets themselves."""
        names = list(set().union(*self._objects))
        known = [name if type(name) is str else str(name) for name in names]
        judged = {name: (text, Sensitivity.NONE) for name, text in zip(names, known, strict=True) if name is not text}
        for index in self._to_look_at(known):
            if not self._effort.spend():
                judged |= dict.fromkeys(names[index:], (MARK, Sensitivity.ALL))
                break
            judged[names[index]] = self._text(known[index], self._effort), self._names.judge(known[index])
        if judged:
            for members in self._objects:
                if not judged.keys().isdisjoint(members):
                    _rewrite(members, judged)


def _rewrite(members: dict[Any, Any], judged: dict[Any, tuple[str, Sensitivity]]) -> None:
    written = {}
    for name, item in members.items():
        shown, sensitivity = judged.get(name, (name, Sensitivity.NONE))
        written[shown] = _hidden(item, sensitivity)
    members.clear()
    members.update(written)


def _hidden(item: Any, sensitivity: Sensitivity) -> Any:
    """Hide a member; None and booleans only say whether there is a secret."""
    if sensitivity is Sensitivity.NONE or type(item) in _NO_SECRETS:
        return item
    return item if sensitivity is Sensitivity.TEXT and type(item) in _NUMBERS else MARK


class Redactor:
    """Replace secrets by `[redacted]`.

    `extra_keys` are further names whose values are secret, matched whole; `own` are secrets themselves.
    """

    def __init__(self, extra_keys: Iterable[str] = (), own: Iterable[str] = ()) -> None:
        self._known = {secret for secret in own if len(secret) >= _SHORTEST_OWN and secret not in MARK}
        self._names = Names(extra_keys)

    @functools.cached_property
    def _scanner(self) -> Scanner:
        """What searches. Made when it is first needed: that takes 18 ms, which most commands can do without."""
        return Scanner(self._names, {written for secret in self._known for written in _ways_to_write(secret)})

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
