"""What an edit of a step input changes: which steps make other calls than before, and so need new keys. Pure."""

from collections.abc import Sequence

from redrive.contracts import StepSnapshot


def count_edit(versions: dict[str, int], steps: Sequence[StepSnapshot] | None, edited: str) -> None:
    """Count an edit for the step and for every later one that reads what may now differ."""
    changed = {edited}
    names = [step.name for step in steps or []]
    for step in (steps or [])[names.index(edited) :] if edited in names else []:
        if step.name == edited or step.reads is None or changed & set(step.reads):
            changed.add(step.name)
            versions[step.name] = versions.get(step.name, 0) + 1
