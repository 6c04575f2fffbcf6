"""When the steps of a run began and ended, as orders change it."""

from datetime import UTC, datetime, timedelta

from redrive import STEP, StepStatus
from redrive.contracts import DOCUMENT_LIMIT, MIB, STEP_LIMIT, RunState, StepSnapshot, StepState
from redrive.dead_letters import Mode, Replay
from redrive.workflows.failures import ATTEMPTS_BUDGET
from redrive.workflows.run_state import begin_cycle, next_revision, send_back, skip_rest

NOW = datetime(2026, 11, 16, 3, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def step(name: str, status: StepStatus, finished: datetime | None = NOW) -> StepState:
    """A step that began at NOW."""
    return StepState(name=name, status=status, cycle=1, started_at=NOW, finished_at=finished)


def test_a_cycle_begins_without_an_end() -> None:
    """What is known of the cycle before is not taken for this one's."""
    again = step("a", StepStatus.DLQ)
    begin_cycle(again, LATER)
    assert (again.status, again.cycle, again.started_at, again.finished_at) == (StepStatus.RUNNING, 2, LATER, None)


def test_steps_that_are_sent_back_have_no_times() -> None:
    """The ones before the place that a replay goes back to keep theirs."""
    state = RunState(steps=[step("a", StepStatus.SUCCESS), step("b", StepStatus.SUCCESS), step("c", StepStatus.DLQ)])
    snapshots = [StepSnapshot(name=name, policy=STEP) for name in "abc"]
    command = Replay(request_id="r", requested_by="ada", reason="why", mode=Mode.FROM_STEP, from_step="b")
    send_back(state, snapshots, command, state.steps[2])
    assert [each.started_at for each in state.steps] == [NOW, None, None]
    assert [each.finished_at for each in state.steps] == [NOW, None, None]


def test_only_a_step_that_runs_ends_when_the_rest_is_skipped() -> None:
    """A dead step ended when it was exhausted; one that never began has no end."""
    state = RunState(steps=[step("a", StepStatus.DLQ), step("b", StepStatus.RUNNING, None), StepState(name="c")])
    skip_rest(state, LATER)
    assert [each.finished_at for each in state.steps] == [NOW, LATER, None]
    assert {each.status for each in state.steps} == {StepStatus.SKIPPED}


def test_every_report_of_a_run_has_a_larger_revision() -> None:
    """Also within one workflow task, in which no time passes, and on a machine whose clock goes back."""
    state = RunState(steps=[])
    revisions = [next_revision(state, now) for now in (NOW, NOW, LATER, NOW)]
    assert revisions == sorted(set(revisions))


def test_a_run_that_was_reset_numbers_on_from_the_time() -> None:
    """It knows only the reports of its older history; those that were made since have smaller numbers all the same."""
    state = RunState(steps=[])
    next_revision(state, NOW)
    before_the_reset = state.model_copy()
    since = [next_revision(state, NOW + timedelta(minutes=1)) for _ in range(3)]
    assert next_revision(before_the_reset, LATER) > max(since)


def test_the_state_of_the_longest_run_fits_beside_its_document() -> None:
    """Names of 64 characters, all times, and as many attempts as are kept: within what the document leaves free."""
    names = [f"{number:064}" for number in range(STEP_LIMIT)]
    steps = [step(name, StepStatus.SUCCESS) for name in names]
    for each in steps:
        each.attempt, each.max_attempts, each.output_size = 100, 1000, MIB
    size = len(RunState(steps=steps, outputs={name: {} for name in names}).model_dump_json())
    assert size + ATTEMPTS_BUDGET < 2 * MIB - DOCUMENT_LIMIT
