"""Runs as tables for a terminal, and as JSON."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Group
from rich.text import Text

from redrive.names import RunStatus, RunSummary, StepStatus
from redrive.starter.cli.terminal import MOST_ROWS, Listing, console, errors

if TYPE_CHECKING:
    from redrive.contracts import Catalog, RunView, StepState

Row = TypeVar("Row")
_STYLES = {
    "SUCCESS": "green",
    "FAILED": "bold red",
    "CANCELED": "yellow",
    "RETRYING": "yellow",
    "RUNNING": "cyan",
}


def print_json(value: Any) -> None:
    """Print a value as JSON, for scripts."""
    print(_json(value, indent=2))


def _json(value: Any, indent: int | None = None) -> str:
    # Here: tables do without it.
    from pydantic_core import to_json  # noqa: PLC0415

    return to_json(value, indent=indent).decode()


def print_list(rows: Sequence[Row], table: Callable[[Sequence[Row]], Listing], *, none: str, json: bool) -> None:
    """Print a list as JSON or as a table; if it is empty, say so on stderr: stdout is for results."""
    if json:
        print_json(rows)
    elif rows:
        console.print(table(rows))
    else:
        errors.print(none)


def print_first(
    rows: Sequence[Row],
    table: Callable[[Sequence[Row]], Listing],
    *,
    limit: int,
    most: int = MOST_ROWS,
    none: str,
    json: bool,
) -> None:
    """Print the first rows of a list without pages; `rows` has one more if there are more, which is said on stderr."""
    print_list(rows[:limit], table, none=none, json=json)
    if len(rows) > limit:
        say_more(larger_limit(limit, most))


def print_page(
    name: str,
    rows: Sequence[Row],
    cursor: str | None,
    table: Callable[[Sequence[Row]], Listing],
    *,
    none: str,
    json: bool,
) -> None:
    """Print one page of a list, as JSON under its name or as a table; on stderr how to get the next one."""
    if json:
        print_json({name: rows, "cursor": cursor})
        return
    print_list(rows, table, none=f"{none} on this page" if cursor else none, json=False)
    if cursor:
        say_more(f"--cursor {cursor}")


def say_more(option: str) -> None:
    """Say on stderr that a list goes on, and which option shows more of it."""
    errors.print(f"there are more: add {option}", markup=False)


def larger_limit(limit: int, most: int) -> str:
    """Return the option that shows more of a list without pages."""
    return f"--limit {min(limit * 10, most)}" if limit < most else "a filter"


def status_text(status: RunStatus | StepStatus) -> Text:
    """Return a status in its colour."""
    return Text(status.value, style=_STYLES.get(status.value, ""))


def runs_table(rows: Sequence[RunSummary]) -> Listing:
    """Return a list of runs."""
    table = Listing("run", "pipeline", "tenant", "status", "failed step", "started")
    for row in rows:
        failed = f"{row.failed_step} ({row.category})" if row.failed_step else ""
        table.add_row(row.run_id, row.pipeline, row.tenant, status_text(row.status), failed, moment(row.started_at))
    return table


def run_json(view: "RunView", output: object) -> dict[str, Any]:
    """Return one run with its result, for scripts."""
    return {**view.model_dump(mode="json"), "output": output}


def run_table(view: "RunView", output: object = None) -> Group:
    """Return one run with its steps, and its result if there is one."""
    title = Text.assemble(view.run_id, "  ", view.pipeline, "  ", status_text(view.status))
    headers = ("step", "status", "attempts", "started", "took", "next retry", "output", "last error")
    table = Listing(*headers)
    until = view.closed_at or datetime.now(UTC)
    for step in view.steps:
        times = (_clock(step.started_at), _took(step, until), wait(step.next_retry_at))
        table.add_row(step.name, status_text(step.status), attempts_text(step), *times, _size(step), last_error(step))
    notes = [Text(note, style="yellow") for note in (view.note,) if note]
    errors = [Text(f"error: {view.error}", style="red")] if view.error else []
    result = [Text(f"result: {_json(output)}", style="green")] if output is not None else []
    return Group(title, *([table] if view.steps else []), *errors, *result, *notes)


def attempts_text(step: "StepState") -> str:
    """Return `2 of 4`, or nothing for a step without an attempt."""
    return f"{step.attempt} of {step.max_attempts}" if step.attempt else ""


def last_error(step: "StepState") -> Text:
    """Return the last error, as plain text."""
    if step.failure:
        return Text(f"{step.failure.category}: {step.failure.message[:160]}")
    if step.attempts:
        return Text(f"{step.attempts[-1].category}: {step.attempts[-1].error[:160]}")
    return Text("")


def modules_table(catalog: "Catalog") -> Group:
    """Return a worker's modules and pipelines."""
    pipelines = Listing("pipeline", "steps")
    for pipeline in catalog.pipelines:
        steps = (f"{step} (fast)" if step in pipeline.fast else step for step in pipeline.steps)
        pipelines.add_row(pipeline.name, " → ".join(steps))
    modules = Listing("module", "input", "attempts", "timeout", "backoff", "what it does")
    for module in catalog.modules:
        policy = module.policy
        modules.add_row(
            module.name,
            ", ".join(_fields(module.input_schema)),
            str(policy.max_attempts),
            f"{policy.timeout.total_seconds():g} s{', fast' if module.fast else ''}",
            f"{policy.base.total_seconds():g} s × {policy.factor:g}, cap {policy.cap.total_seconds():g} s",
            module.summary,
        )
    return Group(pipelines, Text(""), modules)


def _fields(schema: dict[str, Any]) -> list[str]:
    required = set(schema.get("required", []))
    return [name if name in required else f"{name}?" for name in schema.get("properties", {})]


def wait(until: datetime | None) -> str:
    """Return how long it is until a moment."""
    if until is None:
        return ""
    seconds = (until - datetime.now(UTC)).total_seconds()
    return f"in {max(seconds, 0):.1f} s"


def _clock(at: datetime | None) -> str:
    return at.astimezone().strftime("%H:%M:%S") if at else ""


def _took(step: "StepState", until: datetime) -> str:
    if step.started_at is None:
        return ""
    return f"{((step.finished_at or until) - step.started_at).total_seconds():.1f} s"


def _size(step: "StepState") -> str:
    return f"{step.output_size} B" if step.output_size is not None else ""


def moment(at: datetime) -> str:
    """Return a moment in local time."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
