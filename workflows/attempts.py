"""How many of its failed attempts a run carries along. Pure.

A run's state must fit into one Temporal message with its document, or the run could neither return nor continue as new.
What is dropped here is still in the history.
"""

from collections.abc import Sequence

from redrive.contracts import StepState, StepStatus

ATTEMPTS_BUDGET = 56 * 1024


def drop_oldest_attempts(steps: Sequence[StepState], budget: int = ATTEMPTS_BUDGET) -> None:
    """Drop the attempts of the earliest finished steps until the rest fits the budget."""
    healed = [step for step in steps if step.attempts and step.status is StepStatus.SUCCESS]
    for step in reversed(healed):
        budget -= sum(len(entry.model_dump_json()) for entry in step.attempts)
        if budget < 0:
            step.attempts = []
