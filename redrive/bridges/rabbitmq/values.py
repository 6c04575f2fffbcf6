"""Values on AMQP's wire, read within limits.

pamqp reads a header table recursively, copies the rest for each entry, and raises for text that is not UTF-8 or an
impossible time. Any of that ends the connection, and the broker delivers the message again and again. Here a table
costs one pass over its bytes, and unreadable values are left out: the message arrives and is judged.
"""

import datetime
import struct
from typing import Any, Final

from pamqp import decode

DEPTH: Final = 8
ENTRIES: Final = 1000
_LENGTH: Final = struct.Struct(">I")
_SIZES: Final = {
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"su", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"lLdT", 8),
    **dict.fromkeys(b"V\0", 0),
    ord("D"): 5,
}
_SIZED: Final = frozenset(b"SxFA")


def install() -> None:
    """Read all values of this process's connections within the limits."""
    decode.METHODS["table"] = table
    decode.METHODS["shortstr"] = short_string
    decode.METHODS["timestamp"] = timestamp


def table(value: bytes) -> tuple[int, dict[str, Any]]:
    """Read a table; return its size in bytes, and what could be read."""
    if len(value) < 4:
        raise ValueError("a table without its length")
    length = _LENGTH.unpack_from(value)[0]
    return length + 4, _Reader(value).table(4, min(4 + length, len(value)), DEPTH)


def short_string(value: bytes) -> tuple[int, str]:
    """Read a text of up to 255 bytes, with replacement marks where it is not UTF-8."""
    if not value:
        raise ValueError("a text without its length")
    length = value[0]
    return length + 1, value[1 : length + 1].decode(errors="replace")


def timestamp(value: bytes) -> tuple[int, datetime.datetime | None]:
    """Read a time; an impossible one is None."""
    try:
        return decode.timestamp(value)
    except (ValueError, OverflowError, OSError):
        return 8, None


class _Reader:
    """One pass over the bytes of a table, with a budget of entries for its whole content."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = ENTRIES

    def table(self, at: int, end: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while at < end and self._left > 0:
            name_end = at + 1 + self._data[at]
            if name_end >= end:
                break
            after, value = self._value(name_end, end, depth)
            if after > end:
                break
            found[self._data[at + 1 : name_end].decode(errors="replace")] = value
            at = after
        return found

    def array(self, at: int, end: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while at < end and self._left > 0:
            at, value = self._value(at, end, depth)
            found.append(value)
        return found

    def _value(self, at: int, end: int, depth: int) -> tuple[int, Any]:
        """Return where a value ends, and the value; a position beyond the end if it is invalid."""
        self._left -= 1
        kind, start = self._data[at], at + 1
        if kind in _SIZES:
            after = start + _SIZES[kind]
            return after, self._scalar(kind, start, after) if after <= end else None
        if kind not in _SIZED or start + 4 > end:
            return end + 1, None
        start, after = start + 4, start + 4 + _LENGTH.unpack_from(self._data, start)[0]
        return after, self._sized(kind, start, after, depth) if after <= end else None

    def _scalar(self, kind: int, start: int, after: int) -> Any:
        if kind == ord("T"):
            return timestamp(self._data[start:after])[1]
        return decode.TABLE_MAPPING[bytes([kind])](self._data[start:after])[1]

    def _sized(self, kind: int, start: int, after: int, depth: int) -> Any:
        if kind == ord("S"):
            return decode.long_str(self._data[start - 4 : after])[1]
        if kind == ord("x"):
            return self._data[start:after]
        if depth <= 1:
            return None
        read = self.table if kind == ord("F") else self.array
        return read(start, after, depth - 1)
