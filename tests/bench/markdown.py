"""The tables of docs/benchmarks.md, from a report. Pure."""

from collections.abc import Callable, Iterable
from typing import Final

from tests.bench.contenders import DBOS, FAST, OWN, PLAIN, REDRIVE
from tests.bench.cost import Cost
from tests.bench.letter_contenders import BULK, HAND_WRITTEN, SIGNAL_ONLY, UNANSWERED
from tests.bench.letter_rounds import LetterFigures
from tests.bench.measure import Figures, WayCase
from tests.bench.report import GLANCE, Report, Row, glance

TITLES: Final = {
    REDRIVE: "Redrive",
    FAST: "Redrive, fast steps",
    OWN: "Redrive, own worker",
    PLAIN: "plain Temporal",
    DBOS: "DBOS",
    UNANSWERED: "Redrive, no answer asked for",
    BULK: "Redrive, bulk replay",
    HAND_WRITTEN: "hand-written",
    SIGNAL_ONLY: "signal only",
}
DAY: Final = 86_400


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    named = list(heads)
    lines = [named, ["---"] * len(named), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def number(value: float) -> str:
    """Return a measured number with the digits that mean something."""
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def glance_table(report: Report) -> str:
    """Return the first table."""
    rows = [[f"{row.what}, {row.unit}", *(_glance_cell(row, name) for name in GLANCE)] for row in glance(report)]
    return f"{_table(['', *(TITLES[name] for name in GLANCE)], rows)}\n\n{report.conditions.sentence}"


def _glance_cell(row: Row, name: str) -> str:
    if name not in row.values:
        return "-"
    ratio = f" ({row.ratios[name].median:.2f})" if name in row.ratios else ""
    return f"**{number(row.values[name])}**{ratio}"


def run_table(report: Report) -> str:
    """Return all figures of runs."""
    heads = ("steps", "at once", "as", "runs/s", "p50 ms", "p99 ms", "worker", "caller", "Temporal", "PostgreSQL")
    rows = [
        [str(case.steps), str(case.at_once), TITLES[each.contender], *_run_cells(each)]
        for case in report.runs
        for each in case.figures
    ]
    return _table([*heads, "of plain Temporal", "of DBOS"], rows)


def _run_cells(each: Figures) -> list[str]:
    rates = [number(value) for value in (each.per_s, each.p50_ms, each.p99_ms)]
    return rates + _cpu_cells(each.cpu_ms) + [str(each.ratios.get(other, "")) for other in (PLAIN, DBOS)]


def _cpu_cells(used: dict[str, float]) -> list[str]:
    return [f"{used[who]:.1f}" if who in used else "-" for who in ("worker", "caller", "temporal", "postgres")]


def letter_table(report: Report) -> str:
    """Return all figures of dead letters."""
    heads = ("at once", "as", "parked/s", "replays/s", "command to step p50 ms", "p99 ms")
    cpu = ("worker", "caller", "Temporal", "PostgreSQL")
    rows = [
        [str(case.at_once), TITLES[each.contender], *_letter_cells(each)]
        for case in report.letters
        for each in case.figures
    ]
    return _table([*heads, *cpu, "parked/s of hand-written", "replays/s of hand-written"], rows)


def _letter_cells(each: LetterFigures) -> list[str]:
    waits = (each.command_to_step_p50_ms, each.command_to_step_p99_ms)
    rates = [number(value) if value else "-" for value in (each.parked_per_s, each.replays_per_s, *waits)]
    ratios = [str(spreads.get(HAND_WRITTEN, "")) for spreads in (each.parked_ratios, each.replays_ratios)]
    return rates + _cpu_cells(each.cpu_ms) + ratios


def _way_table(cases: list[WayCase], reference: str) -> str:
    rows = [
        [case.what, str(case.at_once), each.contender]
        + [number(value) for value in (each.per_s, each.p50_ms, each.p99_ms)]
        + [str(each.ratios.get(reference, ""))]
        for case in cases
        for each in case.figures
    ]
    return _table(("", "at once", "as", "per s", "p50 ms", "p99 ms", f"of {reference}"), rows)


def start_table(report: Report) -> str:
    """Return all figures of starts without the code."""
    burst = report.starts.burst
    sentence = f"{burst.starts:,} starts at once: {burst.errors} errors, in {burst.seconds:.0f} s."
    return f"{_way_table(report.starts.cases, 'with the code')}\n\n{sentence}"


def cost_table(report: Report) -> str:
    """Return what one costs."""
    heads = ("one of these", "workflow tasks", "events", "history", "actions", "rows", "PostgreSQL", "its log (WAL)")
    return _table(heads, [[cost.what, *_cost_cells(cost)] for cost in report.cost])


def _cost_cells(cost: Cost) -> list[str]:
    tasks, events, actions, rows = (
        f"{value:.1f}".removesuffix(".0") for value in (cost.tasks, cost.events, cost.actions, cost.rows)
    )
    history, stored, written = (
        f"{value / 1000:.1f} kB" for value in (cost.history_bytes, cost.postgres_bytes, cost.wal_bytes)
    )
    return [tasks, events, history, actions, rows, stored, written]


def scale_table(report: Report) -> str:
    """Return what a million and a billion runs a day make."""
    heads = ("runs a day", "each", "workflow tasks/s", "events/s", "history a day", "actions a day", "PostgreSQL a day")
    kinds = [cost for cost in report.cost if "dead letter" not in cost.what and "replay" not in cost.what]
    rows = [
        [words, cost.what, *_scale_cells(cost, runs)]
        for words, runs in (("a million", 10**6), ("a billion", 10**9))
        for cost in kinds
    ]
    return _table(heads, rows)


def _scale_cells(cost: Cost, runs: int) -> list[str]:
    rates = [f"{value * runs / DAY:,.0f}" for value in (cost.tasks, cost.events)]
    actions = cost.actions * runs
    many = f"{actions / 1e9:,.1f} billion" if actions >= 1e9 else f"{actions / 1e6:,.1f} million"
    return [*rates, _size(cost.history_bytes * runs), many, _size(cost.postgres_bytes * runs)]


def _size(value: float) -> str:
    return f"{value / 1e12:,.1f} TB" if value >= 1e12 else f"{value / 1e9:,.1f} GB"


SECTIONS: Final[dict[str, Callable[[Report], str]]] = {
    "glance": glance_table,
    "runs": run_table,
    "dead letters": letter_table,
    "keys": lambda report: _way_table(report.keys, "plain start"),
    "starts": start_table,
    "cost": cost_table,
    "scale": scale_table,
}
"""The marked parts of the page, and what renders them."""
