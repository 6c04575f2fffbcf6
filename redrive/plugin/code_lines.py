"""The line of workflow code where an operation is awaited, for people. Read only when something has failed for good.

It goes into the report alone: nothing in a history depends on it, so that code may move between releases.
"""

import sys
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final

Place = tuple[FrameType, int]

CODE_LINE_LIMIT: Final = 255
_DEPTH_LIMIT: Final = 200
_NOT_THEIRS: Final = sys.stdlib_module_names | {"redrive", "temporalio"}


def calling_line() -> str | None:
    """Return the line of workflow code that led here, or None if none did: the event loop called."""
    return _innermost(_callers(sys._getframe(1)))


def awaiting_line(coroutine: Any) -> str | None:
    """Return the line of workflow code at which a coroutine waits."""
    return _innermost(reversed(list(_suspended(coroutine))))


def raising_line(error: BaseException) -> str | None:
    """Return the line of workflow code through which an error came last."""
    return _innermost(reversed(list(_passed(error.__traceback__))))


def _callers(frame: FrameType | None) -> Iterator[Place]:
    for _ in range(_DEPTH_LIMIT):
        if frame is None:
            return
        yield frame, frame.f_lineno
        frame = frame.f_back


def _suspended(awaited: Any) -> Iterator[Place]:
    """Yield the frames of what waits, the outermost first: coroutines, and generators below them."""
    for _ in range(_DEPTH_LIMIT):
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame, frame.f_lineno
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _passed(traceback: TracebackType | None) -> Iterator[Place]:
    for _ in range(_DEPTH_LIMIT):
        if traceback is None:
            return
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _innermost(places: Iterable[Place]) -> str | None:
    """Return the first place that is the users' own code."""
    for frame, line in places:
        if _is_theirs(frame):
            text = f"{frame.f_code.co_filename}:{line} {frame.f_code.co_qualname}"
            return text[-CODE_LINE_LIMIT:]
    return None


def _is_theirs(frame: FrameType) -> bool:
    # Temporal's sandbox runs code that it has made itself, in `<string>`.
    is_file = not frame.f_code.co_filename.startswith("<")
    return is_file and frame.f_globals.get("__name__", "").split(".")[0] not in _NOT_THEIRS
