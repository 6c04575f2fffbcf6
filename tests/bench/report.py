"""The figures of all benchmarks together, and those that a reader sees at a glance. Pure."""

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from typing import Final

from pydantic import BaseModel, Field

from tests.bench.contenders import DBOS, FAST, OWN, PLAIN, REDRIVE
from tests.bench.cost import Cost
from tests.bench.dead_letters import LetterCase
from tests.bench.letter_contenders import HAND_WRITTEN
from tests.bench.measure import Figures, Spread, WayCase
from tests.bench.runs import RunCase
from tests.bench.starts import StartReport

GLANCE: Final = (REDRIVE, FAST, OWN, PLAIN, DBOS, HAND_WRITTEN)
# A load below this leaves the cores to the benchmark.
QUIET: Final = 0.5


class Conditions(BaseModel):
    """Where, when and how it was measured."""

    at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    cores: int = Field(default_factory=lambda: os.cpu_count() or 1)
    load: float = Field(default_factory=lambda: os.getloadavg()[0], description="load average before the start")
    python: str = Field(default_factory=platform.python_version)
    sdk: str = Field(default_factory=lambda: importlib.metadata.version("temporalio"))
    dbos: str = Field(default_factory=lambda: importlib.metadata.version("dbos"))
    rounds: int
    runs: int

    @property
    def place(self) -> str:
        """Where and when, in words."""
        machine = "a quiet machine" if self.load < QUIET else f"a shared machine (load average {self.load:.1f} before)"
        return f"{self.at.day} {self.at:%B %Y}, {self.cores} cores, {machine}"

    @property
    def sentence(self) -> str:
        """Everything in words."""
        return (
            f"Measured on {self.place}; Python {self.python}, temporalio {self.sdk}, DBOS {self.dbos}; "
            f"{self.rounds} rounds of {self.runs} runs at 50 at once."
        )


class Report(BaseModel):
    """Everything that was measured together."""

    conditions: Conditions
    runs: list[RunCase]
    letters: list[LetterCase]
    keys: list[WayCase]
    starts: StartReport
    cost: list[Cost]


class Row(BaseModel):
    """One measurement of all contenders: values by contender, and ratios of rates to the reference's."""

    what: str
    unit: str
    values: dict[str, float]
    ratios: dict[str, Spread]

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return self.unit == "ms"


def glance(report: Report) -> list[Row]:
    """Return what the first table and the chart show."""
    rows = [_run_row(case) for case in sorted(report.runs, key=lambda case: (case.at_once, case.steps))]
    most = max(report.letters, key=lambda case: case.at_once)
    figures = {each.contender: each for each in most.figures if each.contender in GLANCE}
    rows.append(
        Row(
            what=f"dead letters, {_at_once(most.at_once)}",
            unit="a second",
            values={name: each.parked_per_s for name, each in figures.items()},
            ratios=_against(HAND_WRITTEN, {name: each.parked_ratios for name, each in figures.items()}),
        )
    )
    rows.append(
        Row(
            what=f"replays, {_at_once(most.at_once)}",
            unit="a second",
            values={name: each.replays_per_s for name, each in figures.items()},
            ratios=_against(HAND_WRITTEN, {name: each.replays_ratios for name, each in figures.items()}),
        )
    )
    return rows


def _run_row(case: RunCase) -> Row:
    def value(figures: Figures) -> float:
        return figures.p50_ms if case.at_once == 1 else figures.per_s

    return Row(
        what=f"runs of {'one step' if case.steps == 1 else 'three steps'}, {_at_once(case.at_once)}",
        unit="ms" if case.at_once == 1 else "a second",
        values={each.contender: value(each) for each in case.figures},
        ratios=_against(PLAIN, {each.contender: each.ratios for each in case.figures}),
    )


def _at_once(number: int) -> str:
    return "one at a time" if number == 1 else f"{number} at once"


def _against(reference: str, ratios: dict[str, dict[str, Spread]]) -> dict[str, Spread]:
    return {name: others[reference] for name, others in ratios.items() if reference in others}
