"""What the Web UI shows of a run, of a dead letter and of a bulk operation."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from redrive import RunStatus, StepStatus
from redrive.bulk import BulkCommand, BulkControlInput, BulkProgress, BulkStart, BulkStatus
from redrive.categories import Category
from redrive.contracts import FailedCycle, RunInput, StepState
from redrive.dead_letters import LetterId, Mode, Replay, Verb
from redrive.workflows.details import bulk_details, escape, letter_details, run_details

COMMAND = RunInput(pipeline="orders", tenant="acme")
LETTER = LetterId(tenant="acme", run_id="run-7", step="charge")


def failure(message: str) -> FailedCycle:
    """Return how the step `charge` was exhausted."""
    return FailedCycle(
        step="charge",
        cycle=2,
        category=Category.PROVIDER_4XX,
        error_type="ServiceError",
        message=message,
        attempts=[],
    )


def signal_of(details: str) -> dict[str, str]:
    """Return the signal that the details tell the reader to send."""
    block = re.search(r"```json\n(.*?)\n```", details, re.DOTALL)
    assert block
    document: dict[str, str] = json.loads(block[1])
    return document


def test_a_bulk_operation_is_described_with_its_counts() -> None:
    """Counts, who asked and why, as text; and the command that its signals take fits."""
    command = BulkCommand(tenant="acme", verb=Verb.REPLAY)
    start = BulkStart(request_id="r", command=command, plan_hash="h", requested_by="ada", reason="*now*")
    running = BulkProgress(status=BulkStatus.RUNNING, total=9, applied=4, failed=5)
    details = bulk_details(start, running)
    assert "of 9 dead letters" in details
    assert "| failed | 5 |" in details
    assert "\\*now\\*" in details
    BulkControlInput.model_validate(signal_of(details))
    assert "```" not in bulk_details(start, running.model_copy(update={"status": BulkStatus.DONE}))


def test_a_run_is_described_step_by_step() -> None:
    """Pipeline, tenant, status and each step's place are told; tries only where there was more than one."""
    steps = [
        StepState(name="reserve", status=StepStatus.SUCCESS, attempt=1),
        StepState(name="charge", status=StepStatus.SUCCESS, attempt=3),
        StepState(name="ship", status=StepStatus.RUNNING),
        StepState(name="mail"),
    ]
    assert run_details(COMMAND, RunStatus.RUNNING, steps).split("\n") == [
        "**orders** of tenant **acme**: RUNNING",
        "",
        "1. reserve: done",
        "2. charge: done after 3 attempts",
        "3. ship: running",
        "4. mail: waiting",
    ]


def test_a_failure_is_quoted_as_plain_text() -> None:
    """The failed step, its category and its text are told, and the text cannot become markup."""
    dead = failure("[click](http://evil) <img src=x>\n# now")
    steps = [StepState(name="charge", status=StepStatus.FAILED, failure=dead)]
    lines = run_details(COMMAND, RunStatus.FAILED, steps).split("\n")
    assert "1. charge: **failed**" in lines
    assert "Step **charge** failed: provider_4xx" in lines
    assert lines[-1] == r"> \[click\]\(http://evil\) \<img src=x\> \# now"


def test_a_parked_run_tells_the_signal_to_send() -> None:
    """What the page says to send is a command that can be read."""
    steps = [StepState(name="charge", status=StepStatus.DLQ, failure=failure("no"))]
    details = run_details(COMMAND, RunStatus.DLQ_PENDING, steps)
    assert "1. charge: **dead letter**" in details
    assert Replay.model_validate(signal_of(details)).mode is Mode.FROM_STEP


def test_a_partial_run_tells_how_it_goes_on() -> None:
    """It waits for `continue`, and for no replay."""
    details = run_details(COMMAND, RunStatus.PARTIAL, [StepState(name="charge", status=StepStatus.SUCCESS)])
    assert "`continue`" in details
    assert "`replay`" not in details


def test_a_dead_letter_tells_what_failed_and_what_to_send() -> None:
    """Step, pipeline, tenant, run, category, cycle and text stand there, and a signal that can be read."""
    details = letter_details(LETTER, "orders", failure("a <b>"))
    assert "Step **charge** of **orders**, tenant **acme**" in details
    assert "`run-7`" in details
    assert "provider_4xx, 0 attempts in cycle 2" in details
    assert r"> a \<b\>" in details
    assert Replay.model_validate(signal_of(details)).from_step is None


@settings(deadline=None)
@given(st.text(max_size=1000))
def test_escaped_text_is_one_line_without_markup(text: str) -> None:
    """No character of error text keeps a meaning in Markdown or HTML."""
    escaped = escape(text)
    assert "\n" not in escaped
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_{}\[\]()#+\-.!|<>~]", escaped)
    assert len(escaped) <= 1000
