"""Walks a JSON document level by level. Pure.

All values of one depth are processed together, so that a megabyte takes a few passes that run in C. No paths are kept:
a path is needed only for a problem, and is then found by searching for each holder, one level up after another. Time
and memory are linear in the document's size, whatever its shape.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

PATH_LIMIT: Final = 200
_NAME_SHOWN: Final = 80
_HARMLESS: Final = frozenset({bool, type(None)})
Path = list[str | int]


class Level:
    """The containers at one depth of a document. A list of one holds the document itself."""

    def __init__(self, dicts: list[dict[Any, Any]], lists: list[Sequence[Any]]) -> None:
        self.dicts = dicts
        self.lists = lists

    @property
    def count(self) -> int:
        """How many values there are. Before they are listed, this is nearly free."""
        return sum(map(len, self.dicts)) + sum(map(len, self.lists))

    @functools.cached_property
    def names(self) -> list[Any]:
        """The names of all members."""
        return [*itertools.chain.from_iterable(self.dicts)]

    @functools.cached_property
    def by_kind(self) -> dict[type, list[Any]]:
        """The values by their type, but true, false and null."""
        inner = itertools.chain.from_iterable
        values = [*inner(map(dict.values, self.dicts)), *inner(self.lists)]
        # Not a set: workflows must meet problems in the same order each time.
        kinds = dict.fromkeys(map(type, values))
        if len(kinds) == 1 and not kinds.keys() & _HARMLESS:
            return dict.fromkeys(kinds, values)
        return {kind: [value for value in values if type(value) is kind] for kind in kinds if kind not in _HARMLESS}

    def find(self, is_it: Callable[[Any], bool]) -> tuple[Any, str | int]:
        """Return the container of the value, and its name or index there."""
        for holder in self.dicts:
            for name, value in holder.items():
                if is_it(value):
                    return holder, name
        for items in self.lists:
            for index, value in enumerate(items):
                if is_it(value):
                    return items, index
        raise LookupError("the value is not in this level")


class Leaf(NamedTuple):
    """A field that a merge patch changes. `names` is reused: the next leaf changes the list."""

    names: list[str]
    value: Any


def levels(document: object, sequences: tuple[type, ...] = (list,)) -> Iterator[Level]:
    """Yield the levels of a document from the top, each when it is asked for."""
    level = Level([], [[document]])
    while level.dicts or level.lists:
        yield level
        dicts: list[dict[Any, Any]] = []
        lists: list[Sequence[Any]] = []
        for kind, values in level.by_kind.items():
            if issubclass(kind, dict):
                dicts += values
            elif issubclass(kind, sequences):
                lists += values
        level = Level(dicts, lists)


def path_to(walked: Sequence[Level], is_it: Callable[[Any], bool]) -> Path:
    """Return the path to a value of the last of these levels."""
    path: Path = []
    for level in reversed(walked):
        holder, name = level.find(is_it)
        path.append(name)
        is_it = functools.partial(operator.is_, holder)
    return path[-2::-1]


def path_text(path: Path) -> str:
    """Return a path as text, `.items[2].price`, cut if it is long."""
    return _cut(f"[{part}]" if isinstance(part, int) else f".{bounded(part, _NAME_SHOWN)}" for part in path)


def dotted(names: Sequence[str]) -> str:
    """Return the path of a field, `items.price`, cut if it is long."""
    return _cut(f"{'.' if place else ''}{bounded(name, _NAME_SHOWN)}" for place, name in enumerate(names))


def _cut(parts: Iterator[str]) -> str:
    text = ""
    for part in parts:
        text += part
        if len(text) > PATH_LIMIT:
            break
    return bounded(text, PATH_LIMIT)


def bounded(text: str, limit: int) -> str:
    """Return a text, or its beginning."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def leaves(patch: dict[str, Any]) -> Iterator[Leaf]:
    """Return the fields that a merge patch changes, each with its new value."""
    names: list[str] = []
    inside = [iter(patch.items())]
    while inside:
        name, value = next(inside[-1], (None, None))
        if name is None:
            inside.pop()
            del names[-1:]
        elif isinstance(value, dict) and value:
            names.append(name)
            inside.append(iter(value.items()))
        else:
            names.append(name)
            yield Leaf(names, value)
            names.pop()
