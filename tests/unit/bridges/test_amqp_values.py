"""Values on AMQP's wire are read in one pass, whatever a publisher puts there."""

import struct
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, encode, header

from redrive.bridges.rabbitmq.connection import DEPTH, ENTRIES, install, short_string, table, timestamp

install()


def nested(levels: int) -> bytes:
    """A table in a table, and so on, as no encoder of Python could write it."""
    inner = struct.pack(">I", 0)
    for _ in range(levels):
        inner = struct.pack(">I", len(inner) + 3) + b"\x01aF" + inner
    return inner


SCALARS = st.none() | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.text(max_size=20)
TABLES = st.recursive(
    st.dictionaries(st.text(max_size=20), SCALARS, max_size=5),
    lambda inner: st.dictionaries(
        st.text(max_size=20), SCALARS | inner | st.lists(SCALARS | inner, max_size=3), max_size=4
    ),
    max_leaves=6,
)


@given(value=TABLES)
def test_ordinary_tables_are_read_as_they_were_written(value: dict[str, Any]) -> None:
    """Within the limits nothing is lost."""
    data = encode.field_table(value)
    assert table(data + b"rest") == (len(data), value)


@given(data=st.binary(min_size=4, max_size=200))
def test_any_bytes_are_a_table_of_what_can_be_read(data: bytes) -> None:
    """No bytes raise: the length at their beginning says where the next value is."""
    length, found = table(data)
    assert length == 4 + struct.unpack(">I", data[:4])[0]
    assert isinstance(found, dict)


def test_depth_and_number_are_bounded() -> None:
    """Tables in tables end at a level, and a hundred thousand entries at a number, in little time."""
    started = time.process_time()
    found: Any = table(nested(18_000))[1]
    depth = 0
    while found:
        found, depth = found["a"], depth + 1
    assert depth == DEPTH
    wide = b"".join(b"\x04" + struct.pack(">I", n) + b"V" for n in range(20_000))
    _, many = table(struct.pack(">I", len(wide)) + wide)
    assert len(many) <= ENTRIES
    assert time.process_time() - started < 2.0


def test_what_cannot_be_read_is_marked_or_left_out() -> None:
    """A text that is not UTF-8 and a time that does not exist end no connection."""
    assert short_string(b"\x02\xffa") == (3, "\ufffda")
    assert timestamp(struct.pack(">Q", 2**64 - 1)) == (8, None)


@pytest.mark.parametrize(
    ("flags", "data"),
    [
        (1 << 13, nested(18_000)),
        (1 << 15, b"\x02\xff\xff"),
        (1 << 6, struct.pack(">Q", 2**64 - 1)),
        (1 << 13, struct.pack(">I", 4) + b"\x01\xffSz"),
    ],
    ids=["deep headers", "content type", "timestamp", "broken headers"],
)
def test_header_frame_of_a_hostile_message_is_read(flags: int, data: bytes) -> None:
    """The library that reads frames comes through all of them."""
    frame = header.ContentHeader(properties=commands.Basic.Properties())
    frame.unmarshal(struct.pack(">HHQ", 60, 0, 5) + struct.pack(">H", flags) + data)
    assert frame.body_size == 5
