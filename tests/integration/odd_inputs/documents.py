"""What nobody should send to a workflow, as Temporal carries it."""

import json
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue


def raw(data: bytes, encoding: bytes | None = b"json/plain", **metadata: bytes) -> RawValue:
    """Return an argument with exactly these bytes."""
    named = {} if encoding is None else {"encoding": encoding}
    return RawValue(Payload(metadata=named | metadata, data=data))


def of(value: Any) -> RawValue:
    """Return an argument with this JSON."""
    return raw(json.dumps(value).encode())


# Each is a list of arguments.
MALFORMED: Final[dict[str, list[RawValue]]] = {
    "nothing": [],
    "null": [raw(b"", b"binary/null")],
    "null in JSON": [of(None)],
    "a number": [of(7)],
    "a text": [of("replay")],
    "a list": [of([{"tenant": "acme"}])],
    "an empty object": [of({})],
    "unknown fields": [of({"tenant": "acme", "surprise": True})],
    "wrong types": [of({"tenant": 7, "letter": "x", "command": [], "alert": None, "pipeline": {}, "verb": 1})],
    "extreme moments": [of({"tenant": "a", "verb": "discard", "selection": {"since": "0001-01-01T00:00:00+23:59"}})],
    "a shift without end": [of({"tenant": "acme", "shift": "P999999999D"})],
    "a shift below zero": [of({"tenant": "acme", "shift": -3})],
    "U+0000": [of({"tenant": "acme", "bulk_id": "a\0b", "pipeline": "p", "payload": {"a": "\0"}})],
    "a lone surrogate": [raw(b'{"tenant": "\\ud800"}')],
    "NaN": [raw(b'{"tenant": NaN}')],
    "not JSON": [raw(b"{")],
    "not UTF-8": [raw(b"\xff\xfe\x00")],
    "10,000 levels": [raw(b"[" * 10_000 + b"]" * 10_000)],
    "1.5 MB of text": [of({"tenant": "x" * 1_500_000})],
    "300,000 wrong items": [of({"tenant": "acme", "verb": "discard", "selection": {"letters": [0] * 300_000}})],
    "bytes": [raw(b"\x00\x01\x02", b"binary/plain")],
    "encrypted": [raw(b"\x00\x01\x02", b"binary/encrypted")],
    "no encoding": [raw(b"\x00\x01\x02", None)],
    "an encoding that is no text": [raw(b"{}", b"\xff\xfe")],
    "an unknown protobuf": [raw(b"\x00", b"binary/protobuf", messageType=b"no.such.Type")],
    "two inputs": [of({}), of({})],
    "two inputs, one encrypted": [of({}), raw(b"\x00", b"binary/encrypted")],
    "two inputs that are not JSON": [raw(b"{"), raw(b"\xff")],
    "twenty inputs": [of({"n": n}) for n in range(20)],
}
# What a workflow that takes no input may be started with.
NONE_AT_ALL: Final = {"nothing", "null", "null in JSON"}
