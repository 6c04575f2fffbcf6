"""What redaction costs: linear in the size of what is redacted, whatever that holds."""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.redaction.formats import FORMATS
from redrive.redaction.names import ANYWHERE, AS_WORD, AT_END, LAST_WORD, NAMED, NAMING, PLURAL
from redrive.redaction.redactor import INLINE, MARK, Redactor
from redrive.redaction.scan import MOST_PLACES, Effort
from tests.hostile.secrets import DOCUMENTS, TEXTS

MIB = 1024 * 1024
# About 0.02 s of a processor of its own. A processor that is shared with other tests counts several times as much; what
# this guards against took 5 s and more.
MOST_SECONDS = 0.4
REDACTOR = Redactor(["member_no"], ["own-secret-1"])

NAMES = [*ANYWHERE, *AS_WORD, *AT_END, *LAST_WORD, *PLURAL, *NAMED, *NAMING]
PIECES = [
    *"a4-.\\\"'`/:@=?&<>[]{}()|\n\t\0é密",
    *("4 ", "4-", "4.", "444 ", "4111 ", "4111.", "4111111111111111 ", "4111111111111111", "0.", "1700000000000 "),
    *("\\'", '\\"', "%3d", "%22", "&quot;", "://", "://a:", "://a:b@", "bearer ", "bearer abcd ", "basic "),
    *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "mysql ", "mysql -p", "login a password ", MARK),
    *('"name": "password", ', '"value": "x", ', "input_value=", "private-lines: 1\n", "identified by ", "-u a:b "),
    *(f"password{after}" for after in ("", '="', "='", ': "x", ', ">", "=[", "=(", " => ", ": |\n a\n")),
]  # fmt: skip
MIXED = [
    *PIECES,
    *(f"{name}{after}" for name in NAMES for after in ("", "=", '="', ': "x", ', ">", "=[")),
    *(f"{literal}{after}" for literal in FORMATS for after in ("", "a", "a" * 40 + " ")),
    *(planted.carrier + "\n" for planted in TEXTS),
]


def seconds(act: Callable[[], object]) -> float:
    """Return the processor time of the quickest of three calls."""
    took = []
    for _ in range(3):
        began = time.process_time()
        act()
        took.append(time.process_time() - began)
        if took[-1] < MOST_SECONDS:
            break
    return min(took)


def test_every_piece_of_a_mebibyte_is_quick() -> None:
    """A mebibyte of any piece of what the rules look for, over and over, is redacted in a fraction of a second."""
    took = {piece: seconds(functools.partial(REDACTOR.text, piece * (MIB // len(piece)))) for piece in PIECES}
    assert {piece: each for piece, each in took.items() if each > MOST_SECONDS} == {}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(MIXED) | st.text(max_size=20), min_size=1, max_size=6).map("".join))
def test_a_mebibyte_of_any_text_is_quick(text: str) -> None:
    """So is a mebibyte of any mixture of them."""
    assert seconds(lambda: REDACTOR.text((text or "a") * (MIB // max(1, len(text))))) < MOST_SECONDS


@pytest.mark.parametrize(
    ("unit", "size"),
    [
        ("aaaaa", 8), ("password", 11), ("pw=12", 8), (1, 2), (0.5, 4), (4111111111111111, 17), ([], 3), ([1], 4),
        ({"a": 1}, 8), ({"name": "password", "value": 1}, 31), (["pin", "x"], 12), ("--password", 13),
        ("https://a:b@c", 16), (None, 5), ([[[[[[[[1]]]]]]]], 18),
        *((planted.carrier, len(str(planted.carrier)) + 3) for planted in DOCUMENTS),
    ],
    ids=str,
)  # fmt: skip
def test_a_mebibyte_of_any_document_is_quick(unit: Any, size: int) -> None:
    """A document of a hundred thousand small things costs about as much as one large text."""
    document = {"items": [unit] * (MIB // size)}
    assert seconds(lambda: REDACTOR.value(document)) < MOST_SECONDS


@pytest.mark.parametrize("name", ["key{:06}", "password{:06}", "{:06}"])
def test_a_mebibyte_of_names_is_quick(name: str) -> None:
    """A document of a hundred thousand different names is no exception."""
    document = {name.format(number): 1 for number in range(MIB // (len(name) + 6))}
    assert seconds(lambda: REDACTOR.value(document)) < MOST_SECONDS


def test_what_is_not_looked_at_is_hidden() -> None:
    """Of a text with more places than are looked at, the rest is hidden, not shown unread."""
    text = "password x " * (2 * MOST_PLACES) + "token=hunter2"
    redacted = REDACTOR.text(text)
    assert "hunter2" not in redacted
    assert redacted.endswith(MARK)
    assert REDACTOR.text(redacted) == redacted
    document = ["password x"] * (2 * MOST_PLACES) + ["hunter2"]
    assert REDACTOR.value(document)[-1] == MARK
    assert REDACTOR.value(REDACTOR.value(document)) == REDACTOR.value(document)


def test_work_is_bounded_by_places() -> None:
    """A pass over a hostile text looks at so many places, however long it is."""
    effort = Effort()
    assert len(REDACTOR._scanner.spans("pin=1 " * MIB, effort)) == MOST_PLACES + 1
    assert effort.places == -1


async def test_a_large_document_does_not_hold_up_the_loop() -> None:
    """It is redacted in a thread; a small one is not worth one."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    before = turns
    assert await REDACTOR.value_aside({"pin": "1"}) == {"pin": MARK}
    assert turns == before
    await REDACTOR.value_aside({"items": ["x" * 10] * INLINE})
    counting.cancel()
    assert turns > before
