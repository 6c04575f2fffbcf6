"""How much of its failed attempts a run carries along. Pure.

A run's state has to fit into one Temporal message beside its document, or the run could neither return nor continue as
new. What is dropped here is still in the history.
"""

from collections.abc import Sequence

from redrive.contracts import StepState, StepStatus

ATTEMPTS_BUDGET = 56 * 1024


def drop_oldest_attempts(steps: Sequence[StepState], budget: int = ATTEMPTS_BUDGET) -> None:
    """Forget the attempts of the earliest finished steps until what is left fits the budget."""
    healed = [step for step in steps if step.attempts and step.status is StepStatus.SUCCESS]
    for step in reversed(healed):
        budget -= sum(len(entry.model_dump_json()) for entry in step.attempts)
        if budget < 0:
            step.attempts = []
