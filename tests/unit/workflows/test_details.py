"""What the Web UI shows of a run."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from redrive import RunStatus, StepStatus
from redrive.contracts import FailedCycle, RunInput, StepState
from redrive.errors import Category
from workflows.details import escape, run_details

ORDER = RunInput(pipeline="orders", tenant="acme")


def test_a_run_is_described_step_by_step() -> None:
    """Pipeline, tenant, status and each step's place are told; tries only where there was more than one."""
    steps = [
        StepState(name="reserve", status=StepStatus.SUCCESS, attempt=1),
        StepState(name="charge", status=StepStatus.SUCCESS, attempt=3),
        StepState(name="ship", status=StepStatus.RUNNING),
        StepState(name="mail"),
    ]
    assert run_details(ORDER, RunStatus.RUNNING, steps).split("\n") == [
        "**orders** of tenant **acme**: RUNNING",
        "",
        "1. reserve: done",
        "2. charge: done after 3 attempts",
        "3. ship: running",
        "4. mail: waiting",
    ]


def test_a_failure_is_quoted_as_plain_text() -> None:
    """The failed step, its category and its text are told, and the text cannot become markup."""
    failure = FailedCycle(
        step="charge",
        cycle=1,
        category=Category.PROVIDER_4XX,
        error_type="ServiceError",
        message="[click](http://evil) <img src=x>\n# now",
        attempts=[],
    )
    steps = [StepState(name="charge", status=StepStatus.FAILED, failure=failure)]
    lines = run_details(ORDER, RunStatus.FAILED, steps).split("\n")
    assert "1. charge: **failed**" in lines
    assert "Step **charge** failed: provider_4xx" in lines
    assert lines[-1] == r"> \[click\]\(http://evil\) \<img src=x\> \# now"


@settings(deadline=None)
@given(st.text(max_size=1000))
def test_escaped_text_is_one_line_without_markup(text: str) -> None:
    """No character of error text keeps a meaning in Markdown or HTML."""
    escaped = escape(text)
    assert "\n" not in escaped
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_{}\[\]()#+\-.!|<>~]", escaped)
    assert len(escaped) <= 1000
