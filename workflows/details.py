"""What an operator reads of a run in the Temporal Web UI (Markdown). Pure."""

import re

from redrive.contracts import RunInput, RunStatus, StepState, StepStatus

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~])")
_MARKS = {
    StepStatus.SUCCESS: "done",
    StepStatus.RUNNING: "running",
    StepStatus.FAILED: "**failed**",
    StepStatus.SKIPPED: "skipped",
}


def run_details(order: RunInput, status: RunStatus, steps: list[StepState]) -> str:
    """Describe a run: where it is, and why it failed if it did."""
    lines = [f"**{order.pipeline}** of tenant **{order.tenant}**: {status}", ""]
    lines += [f"{number}. {step.name}: {_step_text(step)}" for number, step in enumerate(steps, 1)]
    failed = next((step.failure for step in steps if step.failure and step.status is StepStatus.FAILED), None)
    if failed:
        lines += ["", f"Step **{failed.step}** failed: {failed.category}", "", f"> {escape(failed.message)}"]
    return "\n".join(lines)


def _step_text(step: StepState) -> str:
    text = _MARKS.get(step.status, "waiting")
    return f"{text} after {step.attempt} attempts" if step.attempt > 1 else text


def escape(text: str, limit: int = 500) -> str:
    """Return error text as plain text for Markdown: it comes from outside and is not to be trusted."""
    return _SPECIAL.sub(r"\\\1", " ".join(text[:limit].split()))
