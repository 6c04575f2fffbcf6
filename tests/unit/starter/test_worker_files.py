"""What `redrive up` shows of its workers, and how it learns that a module's file has changed."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from redrive.processes.program import say_ready
from redrive.starter.cli import up
from redrive.starter.stack.worker_files import LogTail, changed_files, event_for_author, follow, loaded_files

LINE = {"event": "greet.said", "level": "info", "logger": "module.greet", "timestamp": "2026-01-02T03:04:05Z"}


def test_a_tail_has_what_was_added(tmp_path: Path) -> None:
    """Only whole lines, only new ones; a log that was put aside begins again."""
    log = tmp_path / "worker.log"
    log.write_text("old\n")
    tail = LogTail(log)
    with log.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert tail.lines() == ["one"]
        file.write("o\n\n")
        file.flush()
        assert tail.lines() == ["two"]
    log.write_text("new\n")
    assert tail.lines() == ["new"]
    log.unlink()
    assert tail.lines() == []


def test_of_very_many_lines_the_last_are_shown(tmp_path: Path) -> None:
    """A module that floods its log does not flood the memory of `up`."""
    log = tmp_path / "worker.log"
    tail = LogTail(log)
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    lines = tail.lines()
    assert lines[-1] == "line 99999"
    assert lines[0].startswith("line 9")
    assert len(lines) < 10_000


async def test_lines_are_followed_under_the_name_of_their_log(tmp_path: Path) -> None:
    """Each line comes once."""
    log = tmp_path / "worker.log"
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    following = asyncio.create_task(follow({"worker": LogTail(log)}, lambda *line: seen.put_nowait(line)))
    log.write_text("one\n")
    async with asyncio.timeout(60):
        assert await seen.get() == ("worker", "one")
    following.cancel()
    assert seen.empty()


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        (json.dumps(LINE), True),
        (json.dumps(LINE | {"logger": "redrive.activities.run_step"}), False),
        (json.dumps(LINE | {"logger": "redrive.activities.run_step", "level": "warning"}), True),
        ("printed by a module", True),
        ("[1]", True),
    ],
)
def test_an_author_sees_modules_and_warnings(line: str, is_shown: bool) -> None:
    """What modules log and print, and what went wrong; not that each step succeeded."""
    assert (event_for_author(line) is not None) is is_shown


def test_a_line_is_printed_with_its_worker_and_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of a service cannot move the cursor, and a run is named once."""
    output = io.StringIO()
    monkeypatch.setattr(up, "console", Console(file=output, width=200))
    facts = {"run_id": "run-1", "correlation_id": "run-1", "dlq_id": "dead-letter-run-1-greet", "who": "\x1b[2J"}
    up.print_log_line("worker-2", json.dumps(LINE | facts))
    up.print_log_line("worker-2", "printed")
    up.print_log_line("worker-2", json.dumps(LINE | {"logger": "redrive"}))
    assert output.getvalue() == (
        "worker-2 │ 03:04:05 info    greet.said run_id=run-1 who=\\x1b[2J\nworker-2 │ printed\n"
    )


def test_a_worker_names_the_files_that_it_has_loaded(tmp_path: Path) -> None:
    """They are in the file that says that it is ready."""
    ready = tmp_path / "worker"
    say_ready(ready, ["/a/greet.py", "/a/orders.py"])
    assert loaded_files([ready, tmp_path / "none"]) == {Path("/a/greet.py"), Path("/a/orders.py")}


async def test_changes_of_python_files_are_seen_where_modules_are(tmp_path: Path) -> None:
    """Here, and in the directories of loaded files, also of those that were loaded later."""
    here, there = tmp_path / "here", tmp_path / "there"
    for directory in (here, there):
        directory.mkdir()
    loaded: set[Path] = set()
    seen: set[str] = set()

    async def watch() -> None:
        async for files in changed_files(here, lambda: frozenset(loaded)):
            seen.update(file.name for file in files)

    watching = asyncio.create_task(watch())

    async def write_until_seen(file: Path) -> None:
        async with asyncio.timeout(60):
            while file.name not in seen:
                file.write_text(f"# {asyncio.get_running_loop().time()}")
                await asyncio.sleep(0.05)

    await write_until_seen(here / "one.py")
    loaded.add(there / "two.py")
    (here / "notes.txt").write_text("not a module")
    await write_until_seen(there / "two.py")
    watching.cancel()
    await asyncio.wait({watching})
    assert seen == {"one.py", "two.py"}
