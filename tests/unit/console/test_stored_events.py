"""Payloads of stored events are for those who may see payloads, and cost nothing for others."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NoReturn, cast

from redrive.access import Principal, Right, Role
from redrive.console.api.broker_records import event_payload
from redrive.console.app_state import AppState
from redrive.redaction.redactor import MARK, Redactor
from redrive.store.events.records import StoredEvent

RECORD = StoredEvent(
    id="event-1",
    tenant="t",
    dedupe_key="k",
    type="x",
    source="x",
    user_id=None,
    correlation_id=None,
    occurred_at=None,
    run_id="run-1",
    received_at=datetime.now(UTC),
    payload={"password": "hunter2"},
)


class _Unasked(Redactor):
    async def value_aside(self, value: Any) -> NoReturn:
        raise AssertionError("what is not shown is not redacted")


def _app_state(redactor: Redactor) -> AppState:
    return cast("AppState", SimpleNamespace(redactor=redactor))


def _caller(*rights: Right) -> Principal:
    return Principal(id="1", name="ada", role=Role.ADMIN, tenant="t", rights=frozenset(rights), person="member:1")


async def test_payload_is_not_redacted_for_those_who_may_not_see_it() -> None:
    """The right comes first: the payload of an event may be a mebibyte."""
    assert await event_payload(_app_state(_Unasked()), _caller(Right.READ), RECORD) is None


async def test_payload_is_redacted_for_those_who_may_see_it() -> None:
    """Whoever may see payloads sees them without secrets."""
    shown = await event_payload(_app_state(Redactor()), _caller(Right.READ, Right.PAYLOADS), RECORD)
    assert shown == {"password": MARK}
