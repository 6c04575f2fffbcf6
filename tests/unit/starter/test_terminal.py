"""What a terminal shows: ids and links are never cut, whatever its width."""

import io

import pytest
from rich.console import Group
from rich.text import Text

from redrive.starter.cli.terminal import Facts, Listing, Terminal, command_line, hint

RUN = "run-01a1e2177540731697934191006e66dd"
LETTER = f"dead-letter-{RUN}-charge"
LINK = f"http://127.0.0.1:8233/namespaces/default/workflows/{LETTER}"


def shown(renderable: object, width: int) -> str:
    """Return what a terminal of this width is sent."""
    terminal = Terminal(file=io.StringIO(), width=width, highlight=False)
    terminal.print(renderable)
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue()


def letters() -> Listing:
    """A list with two ids and a long error."""
    table = Listing("id", "tenant", "status", "last failure", "error", "request")
    error = "the provider has refused the card of the customer because it has expired"
    for number in range(2):
        table.add_row(LETTER, "acme", Text("pending"), "2026-11-17 05:00:00", error, f"{RUN}{number}")
    return table


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 160, 240])
def test_no_id_is_cut_at_any_width(width: int) -> None:
    """Every id stands whole on one line that is sent to the terminal, and no cell is missing."""
    page = shown(letters(), width)
    assert page.count(LETTER) == 2
    assert all(f"{RUN}{number}" in page for number in range(2))
    assert page.count("acme") == page.count("pending") == 2
    assert "…" not in page
    assert " ".join(page.split()).count("expired") == 2


def test_a_wide_terminal_shows_a_table_and_a_narrow_one_lines() -> None:
    """The header is there where the columns are; otherwise each value has its name."""
    assert shown(letters(), 240).startswith(" id ")
    narrow = shown(letters(), 80).splitlines()
    assert narrow[0] == LETTER
    assert narrow[1].startswith("  tenant acme  status pending  last failure 2026-11-17 05:00:00")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_link_is_cut_among_facts(width: int) -> None:
    """A link is one word, on one line; a sentence is wrapped."""
    page = shown(Facts({"link": LINK, "reason": "the bank is back " * 8, "closed": None}), width)
    assert LINK in page
    assert "closed" not in page
    assert all(len(line) <= width for line in page.splitlines() if "bank" in line)


def test_an_empty_list_shows_nothing() -> None:
    """There is no header without rows."""
    assert shown(Listing("id"), 80).strip() == ""


def test_commands_are_printed_as_they_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `run.py` was called; by name on the path; otherwise by path."""
    monkeypatch.delenv("REDRIVE_CALLED_AS", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.argv", ["/opt/own tools/redrive", "demo"])
    assert command_line() == "'/opt/own tools/redrive'"
    monkeypatch.setenv("REDRIVE_CALLED_AS", "python3 run.py")
    assert command_line() == "python3 run.py"


def test_hints_name_commands_as_they_were_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command in a sentence can be pasted: as `run.py` was called, and not broken into lines."""
    sentence = f"next: `redrive dlq replay {LETTER} --reason …`, or resolve or discard"
    assert shown(Group(hint(sentence)), 80) == f"{sentence}\n"
    monkeypatch.setenv("REDRIVE_CALLED_AS", "python3 run.py")
    assert shown(Group(hint(sentence)), 80) == f"{sentence.replace('redrive dlq', 'python3 run.py dlq')}\n"
    assert shown("`redrive modules` shows what can be started", 80).startswith("`python3 run.py modules`")
