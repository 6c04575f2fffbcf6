"""Redaction of a JSON document. Pure.

The document is copied in tight loops, and its texts are collected. They are searched as one for suspicious places; only
texts with such a place are examined. So a document of many small values costs about as much as one large text.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from redrive.contracts import DEPTH_LIMIT
from redrive.redaction.card_numbers import is_card
from redrive.redaction.names import LONGEST_NAME, NAMED, NAMING, Names, Sensitivity
from redrive.redaction.scan import MARK, Effort, Scanner, argument_of

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
