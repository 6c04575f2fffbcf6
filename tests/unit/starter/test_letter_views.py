"""What a dead letter looks like on a terminal."""

import os
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from redrive.categories import Category
from redrive.connection import read_addresses
from redrive.dead_letters import LetterStatus
from redrive.starter.cli.dead_letters.lists import web_links
from redrive.starter.cli.dead_letters.views import letter_story, letters_table, stats_view
from redrive.starter.cli.terminal import Terminal, plain
from redrive.starter.stack.state import StackInfo, StateDirectory
from redrive.store.dead_letters.models import LetterGroup, LetterRecord, LetterRow, LetterStats

NOW = datetime(2026, 11, 17, tzinfo=UTC)
INFO = StackInfo(
    pid=os.getpid(),
    temporal_address="127.0.0.1:7233",
    namespace="default",
    web_ui="http://127.0.0.1:8233",
    database_url=SecretStr("postgresql://x"),
    task_queue="redrive",
    modules=(),
    workers=(),
    children={},
)


def test_links_lead_to_the_embedded_web_ui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only while the stack runs, and only when it is the one that is used."""
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path))
    servers = read_addresses()
    assert web_links(servers, "run-1") == {}
    with StateDirectory(tmp_path) as state:
        state.write_info(INFO)
        assert web_links(servers, "run-1") == {
            "run in Temporal": "http://127.0.0.1:8233/namespaces/default/workflows/run-1",
        }
        assert web_links(servers, "order 1/a")["run in Temporal"].endswith("/workflows/order%201%2Fa")
        elsewhere = replace(servers, temporal_address="cloud:7233")
        assert web_links(elsewhere, "run-1") == {}
    assert web_links(servers, "run-1") == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[red]a[/red]", "[red]a[/red]"),
        ("a\x1b]0;title\x07b", r"a\x1b]0;title\x07b"),
        ("a\r\x9b31mb\n\tc", "a\\r\\x9b31mb\n\tc"),
        ("пароль \u202e", "пароль \\u202e"),
    ],
)
def test_foreign_text_cannot_steer_the_terminal(text: str, shown: str) -> None:
    """Control characters are made visible, markup is left as it is."""
    assert plain(text).plain == shown


ROW: dict[str, Any] = {
    "id": "dead-letter-run-1-charge",
    "tenant": "acme",
    "run_id": "run-1",
    "step": "charge",
    "module": "charge",
    "pipeline": "order",
    "status": LetterStatus.PENDING,
    "category": Category.UNKNOWN,
    "error_type": "ServiceError",
    "attempt_count": 1,
    "cycle": 1,
    "first_failed_at": NOW,
    "last_failed_at": NOW,
    "fingerprint": "149f4338213d89e6",
    "correlation_id": "run-1",
    "idempotency_key": None,
    "replay_count": 0,
    "version": 1,
    "updated_at": NOW,
    "orphaned": False,
    "blocked_by": None,
    "message": f"the service answered 500: {'x' * 200} the ledger is closed",
}
OPEN: dict[str, Any] = {
    "stack": "",
    "attempts": [],
    "failure_history": [],
    "payload": {},
    "config": {},
    "build_id": "",
    "created_at": NOW,
    **dict.fromkeys(("replayed_by", "replayed_at", "replay_mode", "replay_reason")),
    **dict.fromkeys(("resolution", "resolved_by", "resolved_at", "resolution_reason")),
}
FOREIGN = f"charge@{uuid.UUID(int=1)}-1"


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({}, "next: `redrive dlq replay dead-letter-run-1-charge --reason …`, or resolve or discard"),
        (
            {"orphaned": True},
            "next: `redrive dlq restart dead-letter-run-1-charge --reason …`, or discard (a restart needs",
        ),
        ({"blocked_by": "pay"}, "the run waits at an earlier step: `redrive dlq show run-1/pay`"),
        (
            {"step": FOREIGN, "config": {"kind": "activity", "event_id": 5}},
            "--reason …`, or resolve or discard or reset",
        ),
        ({"step": FOREIGN, "config": {"kind": "local_activity"}}, "--reason …`, or resolve or discard\n"),
        ({"step": FOREIGN, "orphaned": True}, "next: `redrive dlq discard dead-letter-run-1-charge --reason …`\n"),
        ({"step": FOREIGN, "config": {"kind": "workflow_task"}}, "deploy a fixed worker, and this closes by itself"),
        (
            {"step": FOREIGN, "config": {"kind": "workflow_task"}, "orphaned": True},
            "next: `redrive dlq discard dead-letter-run-1-charge --reason …`\n",
        ),
    ],
)
def test_a_dead_letter_names_the_commands_that_it_takes(
    changes: dict[str, Any], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a pipeline's step, of a foreign workflow, of one that has ended, and of one whose code fails."""
    record = LetterRecord(**ROW | OPEN | changes)
    Terminal(width=200).print(letter_story(record, [], {}, None))
    assert hint in capsys.readouterr().out


@pytest.mark.parametrize("status", [LetterStatus.PENDING, LetterStatus.REPLAYING])
def test_a_dead_letter_of_another_temporal_takes_no_command(
    status: LetterStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says why, and what to do instead."""
    record = LetterRecord(**ROW | OPEN | {"status": status})
    Terminal(width=200).print(letter_story(record, [], {}, "the database belongs to another"))
    shown = capsys.readouterr().out
    assert "its run is not in this Temporal: the database belongs to another\n" in shown
    assert "next:" not in shown


def test_a_list_shows_the_end_of_a_long_error() -> None:
    """The cause often stands last."""
    row = LetterRow(**ROW)
    (cells,) = letters_table([row]).rows
    error = cells[-1].plain
    assert len(error) <= 100
    assert error.startswith("the service answered 500: ")
    assert error.endswith(" the ledger is closed")


def test_a_narrow_terminal_shows_a_group_under_its_fingerprint(capsys: pytest.CaptureFixture[str]) -> None:
    """That is what is copied to the next command."""
    group = LetterGroup(
        count=3,
        fingerprint="149f4338213d89e6",
        tenant="acme",
        pipeline="order",
        step="charge",
        category=Category.UNKNOWN,
        error_type="ServiceError",
        first_failed_at=NOW,
        last_failed_at=NOW,
        message="it is down",
        sample="dead-letter-run-1-charge",
    )
    stats = LetterStats(by_status={}, oldest_open=None, looked_at=1, by_category={}, by_step={}, groups=[group])
    Terminal(width=60).print(stats_view(stats))
    assert "\n149f4338213d89e6\n  count 3" in capsys.readouterr().out
