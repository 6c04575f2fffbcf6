"""How an event is read, and the ids and names that are computed from it."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from redrive.errors import InvalidInput, TooLarge
from redrive.events import (
    Event,
    dead_event_id_for,
    event_document,
    event_id_for,
    event_labels,
    parse_envelope,
    pipeline_for,
)

GOOD = {"dedupeKey": "event:ada:1", "type": "interview.completed", "source": "interviews", "payload": {"score": 3}}


def body(**changes: Any) -> bytes:
    return json.dumps({name: value for name, value in (GOOD | changes).items() if value is not ...}).encode()


def test_envelope_is_read() -> None:
    """Camel case as producers write it; what is not named is left out."""
    envelope = parse_envelope(body(userId="ada", occurredAt="2026-05-01T10:00:00Z", extra=1))
    assert (envelope.dedupe_key, envelope.type, envelope.source) == ("event:ada:1", "interview.completed", "interviews")
    assert (envelope.user_id, envelope.tenant, envelope.payload) == ("ada", None, {"score": 3})
    assert envelope.occurred_at
    assert envelope.occurred_at.utcoffset() is not None


WRONG = [
    (b"{", "not valid JSON"),
    (b"\xff", "not valid JSON"),
    (b"null", "valid dictionary"),
    (b'{"dedupeKey": NaN}', "not valid JSON"),
    (body(dedupeKey=...), "dedupeKey: Field required"),
    (body(dedupeKey=""), "dedupeKey: "),
    (body(dedupeKey="a b"), "only visible characters"),
    (body(dedupeKey="k" * 256), "1 to 255"),
    (body(type=...), "type: Field required"),
    (body(type="a\0"), "U+0000"),
    (body(source=7), "source: "),
    (body(payload=[1]), "payload: "),
    (body(payload={"a": "\0"}), "event.payload.a: the character U+0000"),
    (body(tenant="No Such"), "tenant: "),
    (body(occurredAt="2026-05-01T10:00:00"), "occurredAt: "),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said for _, said in WRONG])
def test_wrong_envelope_is_named(text: bytes, said: str) -> None:
    """The sentence says which field is wrong."""
    with pytest.raises(InvalidInput) as refused:
        parse_envelope(text)
    assert said in str(refused.value)


def test_secret_in_a_wrong_envelope_is_not_repeated() -> None:
    """What stands in the message stays out of the error."""
    with pytest.raises(InvalidInput) as refused:
        parse_envelope(body(source=["hunter2"], tenant="Bearer abcdefghijkl"))
    assert "hunter2" not in str(refused.value)
    assert "abcdefghijkl" not in str(refused.value)


def test_message_beyond_the_limit_is_refused_unread() -> None:
    """A payload of more than a mebibyte is too large, whatever it says."""
    with pytest.raises(TooLarge):
        parse_envelope(b" " * (2 * 1024 * 1024))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """No message brings the bridge down."""
    envelope = None
    with contextlib.suppress(InvalidInput):
        envelope = parse_envelope(data)
    assert envelope is None or envelope.dedupe_key


def test_projector_reads_a_checked_payload() -> None:
    """The event's document fits `Event[Payload]`, and a wrong payload does not."""

    class Answers(BaseModel):
        score: int

    class Given(BaseModel):
        event: Event[Answers]

    read = Given.model_validate(event_document("event-1", parse_envelope(body())))
    assert (read.event.id, read.event.dedupe_key, read.event.payload.score) == ("event-1", "event:ada:1", 3)
    with pytest.raises(ValidationError, match=r"event\.payload\.score"):
        Given.model_validate(event_document("event-1", parse_envelope(body(payload={}))))


@pytest.mark.parametrize(
    ("event_type", "pipelines", "pipeline"),
    [
        ("interview.completed", {}, "interview-completed"),
        ("Mission.Stage_Done", {}, "mission-stage-done"),
        ("interview.completed", {"interview.completed": "projections"}, "projections"),
        ("other", {"interview.completed": "projections"}, "other"),
        ("other", {"interview.completed": "projections", "*": "rest"}, "rest"),
        ("…", {}, ""),
    ],
)
def test_pipeline_follows_the_type(event_type: str, pipelines: dict[str, str], pipeline: str) -> None:
    """The setting for the type, then the one for all others, then the pipeline of the same name."""
    assert pipeline_for(event_type, pipelines) == pipeline


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_ids_of_different_events_differ(one: tuple[str, str], other: tuple[str, str]) -> None:
    """An event's id is that of tenant and key, and of nothing else."""
    assert (event_id_for(*one) == event_id_for(*other)) is (one == other)


def test_ids_never_change() -> None:
    """Ids are stored: another way to compute them would store everything twice."""
    assert event_id_for("acme", "event:ada:1") == "event-vtccj42fzqoxtk6njbkvzoakmyuvok3a"
    assert dead_event_id_for("acme", "s", "1-1", b"{") == "dead-event-4onexairgmnlydn6ea2t4ghclkdwxe5g"


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("instance_1", "instance_1"),
        (42, "42"),
        (True, None),
        (None, None),
        (1.5, None),
        ("", None),
        ("two words", None),
        ("a,b", None),
        ("x" * 129, None),
        ("\ud800", None),
        ({"id": "x"}, None),
        pytest.param(10**5000, None, id="huge"),
        ("sk_live_51HqFakeFakeFakeFake", None),
    ],
)
def test_labels_are_read_from_the_payload(value: object, label: str | None) -> None:
    """What can be a label is one; anything else is left out, and nothing is refused for it."""
    expected = {} if label is None else {"mission_id": label}
    assert event_labels({"missionId": value}, {"mission_id": "missionId", "stage_id": "stageId"}) == expected
