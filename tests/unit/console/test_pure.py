"""The console's decisions that need no server."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr

from redrive.access import Principal, Role
from redrive.bridges.events.settings import EventSettings
from redrive.categories import Category
from redrive.console.api.dead_letters import is_edit, plan_hash
from redrive.console.app_state import AppState
from redrive.console.limits import RateLimiter
from redrive.console.problems import refusal_of
from redrive.console.sign_in import local_path
from redrive.console.telemetry import RequestMetrics
from redrive.dead_letters import Discard, LetterStatus, Replay, Resolve
from redrive.errors import IdempotencyMismatch, InvalidInput, OutcomeUnknown, RedriveError, RunNotFound, Unavailable
from redrive.outbox.settings import OutboxSettings
from redrive.settings import Settings
from redrive.store.dead_letters.models import LetterRecord

WHO = {"request_id": "r1", "requested_by": "ada", "reason": "why"}
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def _record(**changes: Any) -> LetterRecord:
    nothing = dict.fromkeys(LetterRecord.model_fields)
    known = {
        **dict.fromkeys(("id", "tenant", "run_id", "step", "module", "pipeline", "error_type", "message"), "x"),
        **dict.fromkeys(("fingerprint", "correlation_id", "stack", "build_id"), "x"),
        **dict.fromkeys(("first_failed_at", "last_failed_at", "updated_at", "created_at"), NOW),
        **dict.fromkeys(("attempt_count", "cycle", "replay_count", "version"), 1),
        "status": LetterStatus.PENDING,
        "category": Category.UNKNOWN,
        "orphaned": False,
        "attempts": [],
        "failure_history": [],
        "labels": {},
        "config": {},
    }
    return LetterRecord.model_validate(nothing | known | changes)


def test_a_plan_is_named_by_what_it_does() -> None:
    """Who, why and the order of fields do not matter; what is put in, and the record's version, do."""
    command = Replay(**WHO, input_patch={"a": 1, "b": {"c": 2, "d": 3}})
    same = Replay(request_id="r2", requested_by="ben", reason="else", input_patch={"b": {"d": 3, "c": 2}, "a": 1})
    other = Replay(**WHO, input_patch={"a": 2, "b": {"c": 2, "d": 3}})
    named = plan_hash(_record(), command)
    assert plan_hash(_record(), same) == named
    assert plan_hash(_record(), other) != named
    assert plan_hash(_record(version=2), command) != named
    assert plan_hash(_record(id="y"), command) != named


def test_edits_put_data_in() -> None:
    """An edited replay and a resolve are edits; a plain replay and a discard are not."""
    assert is_edit(Replay(**WHO, input_patch={}))
    assert is_edit(Resolve(**WHO, output={}))
    assert not is_edit(Replay(**WHO))
    assert not is_edit(Discard(**WHO))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/dlq?status=pending#x", "/dlq?status=pending#x"),
        ("//evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("/a\nb", "/"),
        ("/a b", "/"),
        ("", "/"),
        ("/é", "/"),
    ],
)
def test_a_way_on_stays_here(text: str, path: str) -> None:
    """Only a plain path of this console is followed."""
    assert local_path(text) == path


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInput("x"), 400),
        (RunNotFound("x"), 404),
        (IdempotencyMismatch("k", known="a", given="b"), 422),
        (Unavailable("x"), 503),
        (OutcomeUnknown("x"), 503),
        (RedriveError("x"), 500),
    ],
)
def test_errors_have_their_answer(error: RedriveError, status: int) -> None:
    """Each kind of error has one status, its own code, and a word about what to do; 503 says when."""
    refusal = refusal_of(error)
    assert (refusal.problem.status, refusal.problem.code) == (status, error.code)
    assert refusal.problem.action
    assert ("Retry-After" in refusal.headers) == (status == 503)


def test_a_rate_that_is_none_is_named() -> None:
    """The setting is quoted, with how it must read."""
    with pytest.raises(InvalidInput, match=r"REDRIVE_RATE_LIMIT='often'.*1200/minute"):
        RateLimiter("often", RequestMetrics())


@pytest.mark.parametrize(
    ("changes", "role", "shown"),
    [
        ({"web_ui_proxy": "http://127.0.0.1:8233"}, Role.OWNER, True),
        ({"web_ui_proxy": "http://127.0.0.1:8233"}, Role.ADMIN, False),
        ({"web_ui": "https://temporal.example"}, Role.ADMIN, True),
        ({}, Role.OWNER, False),
    ],
)
async def test_links_to_the_web_ui_are_for_whom_they_lead_there(
    changes: dict[str, Any], role: Role, shown: bool
) -> None:
    """Behind the console's sign-in the Web UI is for owners, and others are not shown a link that is refused."""
    database = SecretStr("postgresql://nobody@127.0.0.1/none")
    app_state = AppState(
        Settings(database_url=database, **changes), EventSettings.model_construct(), OutboxSettings.model_construct()
    )
    caller = Principal(id="p", name="p", role=role, tenant=None, rights=frozenset(), person="p")
    assert bool(app_state.links(caller, run="run-1")) is shown
    await app_state.close()
