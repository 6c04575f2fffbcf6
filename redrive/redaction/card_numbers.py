"""Card numbers among digits: `4111 1111 1111 1111`, with spaces, dots or dashes, or as a number. Pure."""

import re
from typing import Final, NamedTuple

SHORTEST: Final = 13
LONGEST: Final = 19
_LEAST: Final = 10 ** (SHORTEST - 1)
_MOST: Final = 10**LONGEST
# One or two digits between separators are a date or a count, not a group of a card.
_SHORTEST_GROUP: Final = 3
_RUN: Final = re.compile(rb"[0-9]++(?:[ .-][0-9]++)*+")
_GROUP: Final = re.compile(rb"[0-9]++")
_FRACTION: Final = re.compile(rb"[0-9]\.$")
# One in twenty thousand holds digits that pass for a card's. Nobody writes a card in groups of 8, 4, 4, 4 and 12.
_UUID: Final = re.compile(
    rb"(?<![0-9a-z])[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}(?![0-9a-z])"
)
_UUID_LENGTH: Final = 36
# The maximum number of groups that are read of one run; no card has a tenth as many.
_MOST_GROUPS: Final = 2_000
_DOUBLED: Final = bytes.maketrans(b"0123456789", bytes((0, 2, 4, 6, 8, 1, 3, 5, 7, 9)))
_SINGLE: Final = bytes.maketrans(b"0123456789", bytes(range(10)))


class Groups(NamedTuple):
    """What a run of digit groups holds."""

    cards: list[tuple[int, int]]
    end: int
    number: int


def is_card(number: float) -> bool:
    """Tell whether a JSON number is a card number."""
    if not _LEAST <= number < _MOST or number != int(number):
        return False
    return is_card_number(b"%d" % int(number))


def is_card_number(digits: bytes) -> bool:
    """Tell whether digits are a card number: the length, the first digit and Luhn's check."""
    # Cards begin with 2 to 6. Milliseconds and microseconds since 1970 begin with 1: a tenth of them would pass Luhn.
    return SHORTEST <= len(digits) <= LONGEST and digits[0] in b"23456" and _passes_luhn(digits)


def _passes_luhn(digits: bytes) -> bool:
    return (sum(digits[-1::-2].translate(_SINGLE)) + sum(digits[-2::-2].translate(_DOUBLED))) % 10 == 0


def cards_in(text: bytes, start: int) -> Groups:
    """Find the card numbers in the run of digit groups that begins here, such as `12 4111 1111 1111 1111 09`."""
    run = _RUN.match(text, start)
    if run is None:
        return Groups([], start + 1, 1)
    groups = [
        found.span() for found, _ in zip(_GROUP.finditer(text, start, run.end()), range(_MOST_GROUPS), strict=False)
    ]
    end, number = groups[-1][1], len(groups)
    if text[start - 1 : start].isalnum():
        # The rest of a word or of a longer number.
        groups.pop(0)
    if groups and text[end : end + 1].isalpha():
        groups.pop()
    cards = [card for card in _cards(text, groups) if not _is_in_uuid(text, *card)]
    return Groups(cards, end, number)


def _is_in_uuid(text: bytes, start: int, end: int) -> bool:
    near = _UUID.finditer(text, max(0, end - _UUID_LENGTH), start + _UUID_LENGTH + 1)
    return any(found.start() <= start and end <= found.end() for found in near)


def _cards(text: bytes, groups: list[tuple[int, int]]) -> list[tuple[int, int]]:
    cards, first = [], 0
    while first < len(groups):
        last = _last_group(text, groups, first) if text[groups[first][0]] in b"23456" else None
        if last is None:
            first += 1
            continue
        cards.append((groups[first][0], groups[last][1]))
        first = last + 1
    return cards


def _last_group(text: bytes, groups: list[tuple[int, int]], first: int) -> int | None:
    digits, found = b"", None
    for index in range(first, min(first + 7, len(groups))):
        start, end = groups[index]
        if end - start < _SHORTEST_GROUP or end - start + len(digits) > LONGEST:
            break
        digits += text[start:end]
        # A separate group after a point is the fraction of a number: 0.4111111111111111.
        is_fraction = index == first and _FRACTION.search(text, max(0, start - 2), start)
        if len(digits) >= SHORTEST and not is_fraction and _passes_luhn(digits):
            found = index
    return found
