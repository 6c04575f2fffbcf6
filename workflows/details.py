"""What the Temporal Web UI shows of a run (Markdown). Pure."""

import re
from collections.abc import Iterable

from redrive.bulk import BulkProgress, BulkStart
from redrive.contracts import FailedCycle, RunInput, RunStatus, StepState, StepStatus
from redrive.dead_letters import Exhausted, LetterId

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~])")
_DEAD = {StepStatus.FAILED, StepStatus.DLQ}
_MARKS = {
    StepStatus.SUCCESS: "done",
    StepStatus.RUNNING: "running",
    StepStatus.FAILED: "**failed**",
    StepStatus.SKIPPED: "skipped",
    StepStatus.DLQ: "**dead letter**",
}


def run_details(run: RunInput, status: RunStatus, steps: list[StepState], refused: str | None = None) -> str:
    """Describe a run: its status, and why it failed if it did."""
    lines = [f"**{run.pipeline}** of tenant **{run.tenant}**: {status}", ""]
    lines += [f"{number}. {step.name}: {_step_text(step)}" for number, step in enumerate(steps, 1)]
    failed = next((step.failure for step in steps if step.failure and step.status in _DEAD), None)
    if failed:
        lines += ["", f"Step **{failed.step}** failed: {failed.category}", "", f"> {escape(failed.message)}"]
    if refused:
        lines += ["", "A command was refused:", "", f"> {escape(refused)}"]
    if status is RunStatus.DLQ_PENDING:
        lines += ["", *_how_to_replay()]
    if status is RunStatus.PARTIAL:
        lines += ["", "Send the signal `continue` to go on with the later steps."]
    return "\n".join(lines)


def letter_details(letter: LetterId, pipeline: str, cycle: FailedCycle) -> str:
    """Describe a dead letter: what failed, how often, and the exact signal to send."""
    lines = [f"Step **{letter.step}** of **{pipeline}**, tenant **{letter.tenant}**", "", f"Run: `{letter.run_id}`", ""]
    tries = f"{len(cycle.attempts)} attempts in cycle {cycle.cycle}"
    lines += [f"{cycle.category}, {tries}:", "", f"> {escape(cycle.message)}", "", *_how_to_replay()]
    return "\n".join(lines)


def queue_details(tenant: str, rows: Iterable[str]) -> str:
    """Describe a dead letter queue: the last failures that were reported to it, and where to send commands."""
    lines = [f"Dead letters of tenant **{tenant}** are written here. The last ones:", ""]
    lines += ["| failed | run | step | error |", "|---|---|---|---|", *rows]
    lines += [
        "",
        "Send commands to the run, or here:",
        "",
        *_how_to_replay('"run_id": "its run", "step": "its step", '),
    ]
    return "\n".join(lines)


def queue_row(report: Exhausted) -> str:
    """Describe a failure in one line of a table."""
    letter, cycle = report.letter, report.cycle
    error = f"{cycle.category}: {escape(cycle.message, 200)}"
    return f"| {report.at:%F %T} | {escape(letter.run_id)} | {escape(letter.step)} | {error} |"


def bulk_details(start: BulkStart, progress: BulkProgress) -> str:
    """Describe a bulk operation: its progress, who asked for it, and how to stop it."""
    command = start.command
    lines = [f"**{command.verb}** of {progress.total} dead letters, tenant **{command.tenant}**: {progress.status}"]
    lines += ["", f"by {escape(start.requested_by)}: {escape(start.reason)}", "", "| | |", "|---|---|"]
    names = ("pending", "sending", "accepted", "applied", "skipped", "failed")
    lines += [f"| {name} | {getattr(progress, name)} |" for name in names]
    if not progress.status.closed:
        document = '{"requested_by": "you@example.com", "reason": "why"}'
        lines += ["", "The signals `pause`, `resume` and `stop` take:", "", "```json", document, "```"]
    return "\n".join(lines)


def _how_to_replay(address: str = "") -> list[str]:
    return [
        "To run the step again, send the signal `replay` (More Actions, Send a Signal) with:",
        "",
        "```json",
        f'{{{address}"request_id": "any-new-id", "requested_by": "you@example.com", "reason": "why"}}',
        "```",
        "",
        'Add `"mode": "STEP_ONLY"`, `"from_step": "…"`, `"input_patch": {…}` or `"policy": {"max_attempts": 5}` '
        "as needed. "
        'The signals `resolve` (with `"output": {…}`) and `discard` close it.',
    ]


def _step_text(step: StepState) -> str:
    text = _MARKS.get(step.status, "waiting")
    return f"{text} after {step.attempt} attempts" if step.attempt > 1 else text


def escape(text: str, limit: int = 500) -> str:
    """Return error text escaped for Markdown: it comes from outside and is untrusted."""
    return _SPECIAL.sub(r"\\\1", " ".join(text[:limit].split()))
