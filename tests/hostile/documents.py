"""Hostile JSON: documents that cost much, break parsers, or cannot be stored. Made by property, the same each time.

    for document in corpus():            # about a megabyte each, where size is what is hostile
        post(document.data)

Each is bytes with a name. Some are valid, most are not; all have to be taken or refused with a sentence, for a cost
that fits their size. `around` puts one into another document, as its field.
"""

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from redrive.contracts import DEPTH_LIMIT, DIGIT_LIMIT, ELEMENT_LIMIT, MIB, NAME_LIMIT

# Where each document is sent to a live stack by many ways, the suite sends one in five; `make hostile` sends all.
THINNED: Final = 1 if os.environ.get("WHOLE_CORPUS") else 5
_SEED: Final = 10
_DRAWN: Final = 40
_BROKEN: Final = 24


class Document(NamedTuple):
    """Bytes that claim to be JSON."""

    name: str
    data: bytes


def corpus(size: int = MIB) -> Iterator[Document]:
    """Return all documents; those that are hostile by their size have about so many bytes."""
    for family in _FAMILIES:
        for name, data in family(size):
            yield Document(f"{family.__name__.strip('_')}: {name}", data)


def around(field: str, data: bytes, **others: Any) -> bytes:
    """Return a JSON object with these fields, and with bytes as they are under one more name."""
    head = json.dumps(others).encode().removesuffix(b"}")
    return head + (b", " if others else b"") + json.dumps(field).encode() + b": " + data + b"}"


Made = Iterable[tuple[str, bytes]]


def _filled(item: bytes, size: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """Return a list of as many of the same item as fit."""
    count = max(1, (size - 2) // (len(item) + 1))
    return opening + b",".join([item] * count) + closing


def _object(data: bytes) -> bytes:
    return b'{"a":' + data + b"}"


def _long_names(size: int) -> Made:
    for length in (NAME_LIMIT, NAME_LIMIT + 1, size // 10, size // 2):
        name = b'"' + b"k" * length + b'"'
        for what, item in (("texts", b'""'), ("lists", b"[]"), ("numbers", b"0")):
            yield f"{length} over {what}", b"{" + name + b":" + _filled(item, size - length) + b"}"
    name = b'"' + b"k" * NAME_LIMIT + b'":'
    depth = min(DEPTH_LIMIT - 2, size // 2 // len(name))
    yield (
        "one in each level",
        (b"{" + name) * depth + _filled(b'""', size // 2) + b"}" * depth,
    )
    yield "many of them", b"{" + b",".join(name[:-6] + b'%04d":0' % n for n in range(size // len(name) - 1)) + b"}"


def _many_names(size: int) -> Made:
    count = size // 12
    for what, item in (("numbers", b"0"), ("texts", b'""'), ("objects", b"{}"), ("null", b"null")):
        yield what, b"{" + b",".join(b'"%x":%b' % (n, item) for n in range(count)) + b"}"
    yield "one name again and again", _filled(b'"a":0', size, b"{", b"}")
    yield "one name with ever more in it", b"{" + b",".join(b'"a":[%b]' % (b"0," * n + b"0") for n in range(200)) + b"}"
    yield "not ASCII", b"{" + b",".join(f'"é{n}":1'.encode() for n in range(count)) + b"}"
    yield "the empty name", b'{"":{"":{"":0}}}'
    for name in ("__proto__", "constructor", "$ref", "a.b", "a[0]", "../..", "%s%n", "{{7*7}}", "<script>", "'; --"):
        yield name, json.dumps({name: {name: [name]}}).encode()


def _many_elements(size: int) -> Made:
    items = (
        b"0", b"-0.0", b"1.5", b"1e308", b"9007199254740993", b"null", b"true", b'""', b'"a,b"', b'"\\""', b"[]", b"{}",
        b"[ ]", b"[[]]", b"[[[[]]]]", b'{"a":1}', b'{"a":{"a":{}}}', b'[{"a":[{}]}]', b'"\\u00e9"', '"😀"'.encode(),
    )  # fmt: skip
    for item in items:
        yield item.decode(), _object(_filled(item, size))
    for count in (ELEMENT_LIMIT - 2, ELEMENT_LIMIT - 1, ELEMENT_LIMIT, ELEMENT_LIMIT + 1):
        yield f"{count} numbers", _object(_filled(b"1", count * 2 + 2))


def _deep(size: int) -> Made:
    for depth in (50, DEPTH_LIMIT - 1, DEPTH_LIMIT, DEPTH_LIMIT + 1, 150, 250, 1000, 10_000):
        yield f"{depth} lists", _object(b"[" * depth + b"]" * depth)
        yield f"{depth} objects", b'{"a":' * depth + b"1" + b"}" * depth
    yield "as deep as it is long", b"[" * size
    yield "objects as deep as it is long", b'{"a":' * (size // 5)
    yield "closed, never opened", b"]" * size
    width = size - 2 * DEPTH_LIMIT
    yield "deep, then wide", _object(b"[" * 97 + _filled(b'""', width) + b"]" * 97)
    yield "deep, then wrong", _object(b"[" * 97 + _filled(b'""', width // 8)[:-1] + b",1e999]" + b"]" * 97)


def _trees(size: int) -> Made:
    for fan in (2, 3, 10, 100):
        for what in ("lists", "objects"):
            yield f"{what} of {fan}", _object(_tree(fan, size // 2, what))


def _tree(fan: int, size: int, what: str) -> bytes:
    level = b"0"
    while len(level) * fan + 12 * fan < size:
        if what == "lists":
            level = b"[" + b",".join([level] * fan) + b"]"
        else:
            level = b"{" + b",".join(b'"k%d":%b' % (number, level) for number in range(fan)) + b"}"
    return level


def _half_characters(size: int) -> Made:
    for text in ("\\ud800", "\\udc00", "\\udfff\\ud800", "a\\ud83d", "\\ud83db", "\\uD83D\\uD83D\\uDE00"):
        yield f"{text} as a value", _object(f'"{text}"'.encode())
        yield f"{text} as a name", f'{{"{text}":1}}'.encode()
    yield "a whole one", _object(b'"\\ud83d\\ude00"')
    yield "at the end of many", _object(_filled(b'"a"', size // 16)[:-1] + b',"\\udead"]')
    yield "as bytes", _object(b'"\xed\xa0\x80"')


def _control(size: int) -> Made:
    for code in (0, 1, 8, 9, 10, 27, 31, 127, 128, 159):
        yield f"U+{code:04X} escaped", _object(f'"a\\u{code:04x}b"'.encode())
        yield f"U+{code:04X} as it is", _object(f'"a{chr(code)}b"'.encode())
    yield "NUL as a name", b'{"\\u0000":1}'
    yield "NUL after everything", b'{"a":1}\0'
    yield "nothing but NUL", b"\0" * size
    yield "many escaped NUL", _object(b'"' + b"\\u0000" * (size // 6) + b'"')


def _numbers(size: int) -> Made:
    for text in (
        "NaN",
        "-NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "inf",
        "+1",
        "01",
        "1.",
        ".5",
        "0x10",
        "1_000",
        "1e",
        "--1",
    ):
        yield text, _object(text.encode())
    for digits in (16, 19, 20, 309, 310, DIGIT_LIMIT - 1, DIGIT_LIMIT, DIGIT_LIMIT + 1, 100_000, size):
        yield f"{digits} digits", _object(b"9" * digits)
    for text in ("1e308", "1.8e308", "1e309", "-1e400", "1e-400", "1e999999999", "1e99999999999999999999", "4.9e-324"):
        yield text, _object(text.encode())
    yield "a long fraction", _object(b"0." + b"1" * size)
    yield "many large ones", _object(_filled(b"1e308", size))
    yield "many of the longest", _object(_filled(b"9" * DIGIT_LIMIT, size))
    yield "as names", b'{"1":1,"1.0":1,"01":1}'


def _texts(size: int) -> Made:
    prefixes = (
        "4", "4111", "4111 1111 1111 ", "4111-", "Bearer ", "bearer a", "password=", "password: '", "eyJ", "eyJa.eyJ",
        "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "-", "://a:", "http://u:p@", "sk_live_", "ghp_", "xoxb-", "AKIA",
        "rdt_", "'", "\\", "=", "token=", '"', "a", " ", "\n", "é", "\u0301", "😀", "\u202e", "\ufeff", "\u2028",
    )  # fmt: skip
    for prefix in prefixes:
        text = prefix * max(1, size // 2 // len(json.dumps(prefix)))
        yield f"{prefix!a} again and again", json.dumps({"a": text}).encode()
    for text in ("\uffff", "\ufffe", "\U0010ffff", "ß", "İ", "ﬁ", "\u0000".join("ab"), "Ω\u0345", "\u200b", "\x7f"):
        yield f"{text!a}", json.dumps({text: text}, ensure_ascii=False).encode()


def _not_objects(size: int) -> Made:
    for text in ("", " ", "null", "true", "0", '""', '"a"', "[]", "[{}]", "{}", "{", "}", "a", "'a'", "undefined"):
        yield repr(text), text.encode()
    yield "a long text", b'"' + b"a" * size + b'"'
    yield "spaces", b" " * size
    yield "quotes", b'"' * size
    yield "backslashes", b'"' + b"\\" * size
    yield "commas", b"," * size


def _syntax(size: int) -> Made:
    for text in (
        '{"a":1,}', "[1,]", '{"a"}', '{"a":}', "{a:1}", '{"a":1}{"b":2}', '{"a":1} x', "/* */ {}", "// x\n{}",
        '{"a":1 "b":2}', '{"a";1}', '{,"a":1}', '{"a":"\\x41"}', '{"a":"\\u12"}', '{"a":"\n"}', '{"a":tru}', '{"a":"b}',
    ):  # fmt: skip
        yield text.replace("\n", "⏎"), text.encode()
    yield "open text of commas", b'["' + b"," * size
    yield "escaped quotes, not closed", b'["' + b'\\"' * (size // 2)
    yield "a text of brackets", _object(b'"' + b"[{," * (size // 3) + b'"')
    yield "blank lists", _object(_filled(b"[ \t\n ]", size))
    yield "many lines", b"\n" * size + b"{}"


def _encodings(_size: int) -> Made:
    text = '{"a":"é😀"}'
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-7"):
        yield encoding, text.encode(encoding)
    yield "latin-1", '{"a":"é"}'.encode("latin-1")
    yield "UTF-8 with a mark", text.encode("utf-8-sig")
    for wrong in (b"\xff", b"\xc0\x80", b"\xc3", b"\xe2\x82", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\x80"):
        yield f"{wrong!r} as a value", _object(b'"' + wrong + b'"')
        yield f"{wrong!r} as a name", b'{"' + wrong + b'":1}'


def _drawn(size: int) -> Made:
    draw = random.Random(_SEED)
    for number in range(_DRAWN):
        room = int(size ** draw.uniform(0.3, 1.0))
        yield f"number {number}", json.dumps({"a": _value(draw, [room], 0)}, ensure_ascii=draw.random() < 0.5).encode()


def _value(draw: random.Random, room: list[int], depth: int) -> Any:
    room[0] -= 8
    kind = draw.randrange(9) if depth < 60 and room[0] > 0 else draw.randrange(6)
    if kind < 6:
        text = draw.choice(["", "a", "é", "😀", "password", "4111111111111111", "\\", '"']) * draw.choice(
            [1, 1, 3, 100]
        )
        room[0] -= len(text)
        return draw.choice([None, True, draw.randrange(-(10**20), 10**20), draw.uniform(-1e9, 1e9), text, text])
    most = draw.choice([1, 3, 30, 3000])
    if kind == 6:
        return {f"{draw.choice(['a', 'é', 'token'])}{n}": _value(draw, room, depth + 1) for n in _while(room, most)}
    return [_value(draw, room, depth + 1) for _ in _while(room, most)]


def _while(room: list[int], most: int) -> Iterator[int]:
    for number in range(most):
        if room[0] <= 0:
            return
        yield number


def _broken(size: int) -> Made:
    """Valid documents with a few bytes changed, cut or doubled."""
    draw = random.Random(_SEED + 1)
    whole = [data for _, data in _drawn(min(size, 4096))]
    for number in range(_BROKEN):
        data = bytearray(draw.choice(whole))
        for _ in range(draw.randrange(1, 5)):
            place = draw.randrange(len(data))
            data[place : place + draw.choice([0, 1, 5])] = draw.randbytes(draw.choice([0, 1, 4]))
        yield f"number {number}", bytes(data)


_FAMILIES: Final[tuple[Callable[[int], Made], ...]] = (
    _long_names,
    _many_names,
    _many_elements,
    _deep,
    _trees,
    _half_characters,
    _control,
    _numbers,
    _texts,
    _not_objects,
    _syntax,
    _encodings,
    _drawn,
    _broken,
)
