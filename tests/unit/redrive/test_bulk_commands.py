"""The decisions about bulk operations, by table."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from redrive.bulk import (
    BulkCommand,
    BulkControl,
    BulkProgress,
    BulkStart,
    BulkStatus,
    bulk_id_for,
    control_refusal,
    item_command,
    plan_hash,
    room,
    stop_reason,
)
from redrive.dead_letters import Discard, LetterSelection, Mode, Replay, Resolve, Verb
from redrive.token_bucket import TokenBucket


def command(verb: Any = Verb.REPLAY, **options: Any) -> BulkCommand:
    """Return a command."""
    return BulkCommand(tenant="acme", verb=verb, **options)


def running(**counts: int) -> BulkProgress:
    """Return where a running bulk operation is."""
    return BulkProgress(status=BulkStatus.RUNNING, **counts)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"verb": "resolve"}, "output: belongs to resolve"),
        ({"verb": "replay", "output": {}}, "output: belongs to resolve"),
        ({"verb": "discard", "input_patch": {}}, "belong to replay"),
        ({"verb": "discard", "mode": "STEP_ONLY"}, "belong to replay"),
        ({"verb": "restart"}, "verb"),
        ({"verb": "replay", "rate": 0}, "rate"),
        ({"verb": "replay", "parallelism": 0}, "parallelism"),
        ({"verb": "replay", "stop_percent": 101}, "stop_percent"),
        ({"verb": "replay", "tenant": "No Such"}, "tenant"),
        ({"verb": "replay", "selection": {"bogus": 1}}, "bogus"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    """The field that is wrong is named."""
    with pytest.raises(ValidationError, match=said):
        BulkCommand.model_validate({"tenant": "acme", **fields})


@pytest.mark.parametrize(
    ("progress", "options", "wanted"),
    [
        (running(pending=100), {"parallelism": 5}, 5),
        (running(pending=100, sending=2, accepted=2), {"parallelism": 5}, 1),
        (running(pending=100, accepted=9), {"parallelism": 5}, 0),
        (running(pending=2), {"parallelism": 5}, 2),
        (running(pending=100, canary_pending=3, canary_open=3), {"canary": 3}, 3),
        (running(pending=97, accepted=3, canary_open=3), {"canary": 3}, 0),
        (running(pending=97, applied=3), {"canary": 3}, 20),
        (BulkProgress(status=BulkStatus.PAUSED, pending=100), {}, 0),
        (BulkProgress(status=BulkStatus.STOPPING, pending=100), {}, 0),
    ],
)
def test_so_many_more_are_sent(progress: BulkProgress, options: dict[str, Any], wanted: int) -> None:
    """Never more than may be under way, the canary's before all others, none while it is paused or stops."""
    assert room(progress, command(**options)) == wanted


@pytest.mark.parametrize(
    ("progress", "options", "stops"),
    [
        (running(applied=9, failed=10), {}, False),  # too few to judge
        (running(applied=10, failed=10), {}, True),
        (running(applied=90, failed=10), {}, False),  # ten per cent is not more than ten
        (running(applied=89, failed=11), {}, True),
        (running(applied=0, failed=100), {"stop_percent": 100}, False),
        (running(applied=99, failed=1), {"stop_percent": 0}, True),
        (running(skipped=100), {"stop_percent": 0}, False),  # skipped is not failed
        (running(applied=1, failed=1, canary_open=1), {"canary": 3}, False),
        (running(applied=2, failed=1), {"canary": 3}, True),
        (running(applied=3), {"canary": 3}, False),
        (BulkProgress(status=BulkStatus.STOPPING, failed=100), {}, False),
    ],
)
def test_it_stops_when_too_many_fail(progress: BulkProgress, options: dict[str, Any], *, stops: bool) -> None:
    """The share of failures among known outcomes decides, once there are enough of them."""
    assert (stop_reason(progress, command(**options)) is not None) == stops


@pytest.mark.parametrize("status", BulkStatus)
@pytest.mark.parametrize("control", [BulkControl.PAUSE, BulkControl.RESUME, BulkControl.STOP])
def test_what_has_ended_takes_no_command(status: BulkStatus, control: BulkControl) -> None:
    """Closed ones refuse everything; one that stops can only be stopped."""
    refused = control_refusal(status, control) is not None
    assert refused == (status.closed or (status is BulkStatus.STOPPING and control is not BulkControl.STOP))


def test_the_command_of_an_item_is_always_the_same() -> None:
    """Derived from the bulk operation and the letter: sent twice, it is one command; it names the bulk operation."""
    start = BulkStart(request_id="r", command=command(), plan_hash="h", requested_by="ada", reason="why")
    first = item_command(start, "dead-letter-run-1-charge")
    assert first == item_command(start, "dead-letter-run-1-charge")
    assert first.request_id.startswith(f"{start.bulk_id}:")
    assert first.request_id != item_command(start, "dead-letter-run-2-charge").request_id
    assert (first.requested_by, first.reason) == ("ada", "why")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"verb": Verb.REPLAY, "mode": Mode.STEP_ONLY, "input_patch": {"a": 1}}, Replay),
        ({"verb": Verb.RESOLVE, "output": {"a": 1}}, Resolve),
        ({"verb": Verb.DISCARD}, Discard),
    ],
)
def test_each_verb_becomes_its_command(fields: dict[str, Any], kind: type) -> None:
    """What is ordered for all is ordered for each."""
    start = BulkStart(request_id="r", command=command(**fields), plan_hash="h", requested_by="ada", reason="why")
    made = item_command(start, "dead-letter-run-1-charge")
    assert isinstance(made, kind)
    given = start.command.model_dump(include=made.model_fields_set & set(BulkCommand.model_fields))
    assert made.model_dump(include=set(given)) == given


def test_a_bulk_operation_has_one_id_in_each_tenant() -> None:
    """The same request is the same bulk operation; another tenant's is another."""
    assert bulk_id_for("acme", "r") == bulk_id_for("acme", "r")
    assert len({bulk_id_for("acme", "r"), bulk_id_for("acme", "s"), bulk_id_for("other", "r")}) == 3


def test_a_plan_changes_with_every_option_and_member() -> None:
    """But not with the zone in which a moment is written."""
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    first = command(selection=LetterSelection(until=moment))
    same = command(selection=LetterSelection(until=moment.astimezone(UTC)))
    assert plan_hash(first, "members") == plan_hash(same, "members")
    others = [
        command(selection=LetterSelection(until=moment), **{name: value})
        for name, value in (("rate", 1), ("canary", 1))
    ]
    assert len({plan_hash(each, "members") for each in [first, *others]} | {plan_hash(first, "changed")}) == 4


def test_pace_keeps_to_its_rate() -> None:
    """One at once, then so many per second, and a pause is not caught up for more than a second."""
    pace = TokenBucket(4)
    assert pace.take(100.0, 10) == 1
    assert pace.take(100.1, 10) == 0
    assert pace.take(100.5, 10) == 2
    assert pace.take(200.0, 10) == 4
    slow = TokenBucket(0.5)
    assert [slow.take(float(second), 10) for second in range(5)] == [1, 0, 1, 0, 1]
    assert TokenBucket(None).take(0.0, 7) == 7
    assert [TokenBucket(4, waited=waited).take(0.0, 10) for waited in (0.1, 0.25, 0.5, 60.0)] == [0, 1, 2, 4]
