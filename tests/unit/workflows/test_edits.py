"""Which steps make other calls after an edit."""

from redrive.contracts import StepSnapshot
from redrive.policy import STEP
from redrive.workflows.run_state import count_edit


def steps(**reads: list[str] | None) -> list[StepSnapshot]:
    """Make steps by what they read."""
    return [StepSnapshot(name=name, policy=STEP, reads=names) for name, names in reads.items()]


def test_an_edit_counts_for_the_step_and_for_all_that_hang_on_it() -> None:
    """Later steps that read the edited one's output, directly or by way of others, get another input."""
    versions: dict[str, int] = {}
    pipeline = steps(a=["n"], b=["n"], c=["b"], d=["n"], e=["c", "n"], f=None)
    count_edit(versions, pipeline, "b")
    assert versions == {"b": 1, "c": 1, "e": 1, "f": 1}


def test_edits_add_up() -> None:
    """Each edit makes another call."""
    versions = {"a": 1}
    count_edit(versions, steps(a=["n"], b=["a"]), "a")
    count_edit(versions, steps(a=["n"], b=["a"]), "b")
    assert versions == {"a": 2, "b": 2}


def test_an_unknown_step_changes_nothing() -> None:
    """Orders are checked elsewhere."""
    versions: dict[str, int] = {}
    count_edit(versions, None, "a")
    count_edit(versions, steps(b=None), "a")
    assert versions == {}
