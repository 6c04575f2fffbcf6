"""Dead letters as tables and details for a terminal. What comes from an error or a caller is shown as plain text."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from pydantic_core import to_json
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from redrive.categories import Category
from redrive.dead_letter_records import LetterStatus, OperationOptions, Verb
from redrive.messages import Attempt
from redrive.policy import RetryPolicy
from redrive.starter.cli.runs.views import moment
from redrive.starter.cli.terminal import Facts, Listing, hint, plain
from redrive.store.dead_letters.models import (
    AuditEntry,
    FailureCycleEntry,
    LetterGroup,
    LetterRecord,
    LetterRow,
    LetterStats,
)

_STYLES = {
    LetterStatus.PENDING: "bold red",
    LetterStatus.REPLAYING: "cyan",
    LetterStatus.REPLAYED: "green",
    LetterStatus.RESOLVED: "green",
    LetterStatus.DISCARDED: "dim",
}


def letter_status(row: LetterRow) -> Text:
    """Return the status in its colour, with what blocks a command."""
    notes = ["run is gone"] * row.orphaned + [f"waits for {row.blocked_by}"] * bool(row.blocked_by)
    text = Text(row.status.value, style=_STYLES[row.status])
    return text.append(f" ({', '.join(notes)})" if notes else "")


def letters_table(rows: Sequence[LetterRow]) -> Listing:
    """Return a list of dead letters."""
    table = _table("id", "tenant", "pipeline", "status", "category", "cycle", "last failure", "error")
    for row in rows:
        error = plain(_one_line(row.message, 100))
        # A pipeline's run and step are parts of the id. A foreign one is named by what it waits for: `order-1/charge`.
        place = plain(f"{row.pipeline} › {row.run_id}/{row.module}" if row.letter.foreign else row.pipeline)
        facts = (row.tenant, place, letter_status(row), row.category.value, str(row.cycle))
        table.add_row(row.id, *facts, moment(row.last_failed_at), error)
    return table


def letter_story(
    record: LetterRecord, trail: Sequence[AuditEntry], links: dict[str, str], home_problem: str | None
) -> Group:
    """Return one dead letter with all its details."""
    title = Text.assemble(Text(record.id, style="bold"), "  ", letter_status(record))
    parts: list[RenderableType] = [title, _facts({**_identity(record), **links})]
    parts += [Text("\nlast error", style="bold"), plain(f"{record.error_type}: {record.message}", style="red")]
    if record.stack:
        parts.append(Padding(plain(record.stack.rstrip(), style="dim"), (0, 2)))
    parts += [Text("\ncycles", style="bold"), *(_cycle(entry) for entry in record.failure_history)]
    parts += [
        Text(f"\n{'arguments' if record.letter.foreign else 'input'}, redacted", style="bold"),
        plain(to_json(record.payload, indent=2).decode()),
    ]
    if any((policy := _policy(record)).values()):
        parts += [Text("\npolicy", style="bold"), _facts(policy)]
    parts += [Text("\naudit trail", style="bold"), audit_table(trail)]
    return Group(*parts, *_next_commands(record, home_problem))


def _identity(record: LetterRecord) -> dict[str, str | None]:
    return {
        "tenant": record.tenant,
        **(_workflow(record, place.execution) if (place := record.letter.foreign) else _step(record)),
        "category": record.category.value,
        "failed": f"{moment(record.first_failed_at)} to {moment(record.last_failed_at)}, cycle {record.cycle}",
        "worker build": record.build_id,
        "correlation id": record.correlation_id,
        **record.labels,
        "idempotency key": record.idempotency_key,
        "fingerprint": record.fingerprint,
        "replays": _replays(record),
        "closed": _resolution(record),
    }


def _step(record: LetterRecord) -> dict[str, str | None]:
    return {"pipeline": record.pipeline, "run": record.run_id, "step": record.step, "module": record.module}


def _workflow(record: LetterRecord, execution: str) -> dict[str, str | None]:
    kind = str(record.config.get("kind", "")).replace("_", " ")
    return {
        "workflow": record.pipeline,
        "workflow id": record.run_id,
        "temporal run": execution,
        "step": record.step,
        "what failed": f"{kind} {record.module}".strip(),
        "code line": record.config.get("code_line"),
    }


def _replays(record: LetterRecord) -> str:
    if record.replayed_at is None:
        return "none"
    mode = record.replay_mode.value if record.replay_mode else ""
    last = f"last by {record.replayed_by} at {moment(record.replayed_at)}, {mode}: {record.replay_reason}"
    return f"{record.replay_count}, {last}"


def _resolution(record: LetterRecord) -> str | None:
    if record.resolution is None:
        return None
    by = f" by {record.resolved_by} at {moment(record.resolved_at)}" if record.resolved_at else ""
    return f"{record.resolution}{by}" + (f": {record.resolution_reason}" if record.resolution_reason else "")


def _policy(record: LetterRecord) -> dict[str, str | None]:
    # Perhaps written by another release: then it is shown unchanged.
    try:
        if record.letter.foreign:
            return _foreign_policy(OperationOptions.model_validate(record.config))
        policy = RetryPolicy.model_validate(record.config)
    except ValueError:
        return {name: str(value) for name, value in record.config.items()}
    return {
        "attempts": str(policy.max_attempts),
        "backoff": f"{_span(policy.base)} × {policy.factor:g}, cap {_span(policy.cap)}",
        "timeout": _span(policy.timeout),
        "deadline": _span(policy.deadline) if policy.deadline else None,
        "unknown errors": policy.unknown,
    }


def _foreign_policy(options: OperationOptions) -> dict[str, str | None]:
    """Return what a workflow said of retries; what it did not say is Temporal's default."""
    cap = f", cap {_span(options.cap)}" if options.cap else ""
    backoff = f"{_span(options.base)} × {options.factor or 1:g}{cap}" if options.base else None
    return {
        "attempts": str(options.max_attempts or "no limit") if options.max_attempts is not None else None,
        "backoff": backoff,
        "timeout": _span(options.timeout) if options.timeout else None,
        "deadline": _span(options.deadline) if options.deadline else None,
        "task queue": options.task_queue,
    }


def _span(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"


def _cycle(entry: FailureCycleEntry) -> Group:
    origin = f"replayed by {entry.replayed_by} ({entry.mode}): {entry.reason}" if entry.replayed_by else "by itself"
    title = plain(f"cycle {entry.cycle}, {origin}, {entry.category.value}, build {entry.build_id or '?'}")
    table = _table("", "attempt", "at", "category", "error", "then waited")
    for attempt in entry.attempts:
        table.add_row("", *_attempt(attempt))
    return Group(title, table) if entry.attempts else Group(title)


def _attempt(attempt: Attempt) -> tuple[str, str, str, Text, str]:
    error = plain(f"{attempt.error_type}: {_one_line(attempt.error, 160)}")
    waited = _span(attempt.delay) if attempt.delay is not None else ""
    return str(attempt.attempt), moment(attempt.at), attempt.category.value, error, waited


def audit_table(trail: Sequence[AuditEntry]) -> Listing:
    """Return the audit log of one dead letter."""
    table = _table("", "no.", "at", "action", "by", "reason", "request id")
    for entry in trail:
        table.add_row("", str(entry.number), *audit_facts(entry))
    return table


def audit_facts(entry: AuditEntry) -> tuple[str, str, Text, Text, Text]:
    """Return when, what, who, why and by which request."""
    reason = entry.reason or ""
    answer = (entry.after or {}).get("answer") or {}
    if entry.action == "refused":
        reason = f"{reason} → {answer.get('message') or (entry.after or {}).get('problem', '')}".removeprefix(" → ")
    return (
        moment(entry.at),
        entry.action,
        plain(entry.actor),
        plain(_one_line(reason, 200)),
        plain(entry.request_id or ""),
    )


def _next_commands(record: LetterRecord, home_problem: str | None) -> Iterator[Text]:
    if home_problem:
        yield hint(f"\nits run is not in this Temporal: {home_problem}")
    elif verbs := record.possible_commands(home_problem):
        others = f", or {' or '.join(verbs[1:])}" if verbs[1:] else ""
        limit = (
            " (a restart needs the run's history: if Temporal has lost it, discard)" if Verb.RESTART in verbs else ""
        )
        yield hint(f"\nnext: `redrive dlq {verbs[0]} {record.id} --reason …`{others}{limit}")
    elif record.status is not LetterStatus.PENDING:
        return
    elif record.blocked_by:
        yield hint(f"\nthe run waits at an earlier step: `redrive dlq show {record.run_id}/{record.blocked_by}`")
    else:
        yield hint("\nthe workflow's own code fails: deploy a fixed worker, and this closes by itself")


def stats_view(stats: LetterStats) -> Group:
    """Return the number of dead letters, their age, and what they are about."""
    counts = _facts({status.value: str(count) for status, count in stats.by_status.items()})
    parts: list[RenderableType] = [counts]
    if stats.oldest_open is not None:
        oldest = timedelta(seconds=round(stats.oldest_open.total_seconds()))
        parts.append(Text(f"\nthe oldest open one failed {oldest} ago"))
    if stats.groups:
        parts += [Text("\nopen ones, by"), _counts("category", stats.by_category), _counts("step", stats.by_step)]
        parts += [Text("\nopen ones that look alike, the largest groups first"), _groups(stats.groups)]
    return Group(*parts)


def _counts(kind: str, counts: dict[Category, int] | dict[str, int]) -> Facts:
    return _facts({kind: ", ".join(f"{name} {count}" for name, count in counts.items())})


def _groups(groups: Iterable[LetterGroup]) -> Listing:
    table = _table("fingerprint", "count", "tenant", "pipeline", "step", "category", "newest", "error", "sample")
    for group in groups:
        place = (group.tenant, group.pipeline, group.step, group.category.value)
        error = plain(_one_line(group.message, 100))
        table.add_row(group.fingerprint, str(group.count), *place, moment(group.last_failed_at), error, group.sample)
    return table


def _facts(facts: dict[str, str | None]) -> Facts:
    return Facts(facts, indent=2)


def _table(*headers: str) -> Listing:
    return Listing(*headers)


def _one_line(text: str, limit: int) -> str:
    """Return a text as one line. Of a long one, the beginning and the end: an error often says the cause last."""
    line = " ".join(text.split())
    half = (limit - 3) // 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"


def watched_line(record: LetterRecord, at: datetime) -> Text:
    """Return a dead letter's status as one line of a log."""
    closed = _resolution(record) if record.status.closed else None
    about = closed or f"{record.category.value}: {_one_line(record.message, 120)}"
    return Text.assemble(moment(at), "  ", letter_status(record), f"  cycle {record.cycle}  ", plain(about))
