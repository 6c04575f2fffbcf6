"""What a dead letter looks like on a terminal."""

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from redrive.settings import Settings
from redrive.starter.cli.dead_letters.lists import web_links
from redrive.starter.cli.terminal import plain
from redrive.starter.stack.state import StackInfo, StateDirectory

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
    settings = Settings(state_dir=tmp_path)
    assert web_links(settings, "run-1", "dead-letter-run-1-pay") == {}
    with StateDirectory(tmp_path) as state:
        state.write_info(INFO)
        assert web_links(settings, "run-1", "dead-letter-run-1-pay") == {
            "run in Temporal": "http://127.0.0.1:8233/namespaces/default/workflows/run-1",
            "letter in Temporal": "http://127.0.0.1:8233/namespaces/default/workflows/dead-letter-run-1-pay",
        }
        elsewhere = settings.model_copy(update={"temporal_address": "cloud:7233"})
        assert web_links(elsewhere, "run-1", "dead-letter-run-1-pay") == {}
    assert web_links(settings, "run-1", "dead-letter-run-1-pay") == {}


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
