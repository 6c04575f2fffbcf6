"""Writes figures to docs/benchmarks.json, and from there to the tables and the chart of docs/benchmarks.md.

`python -m tests.bench.page` renders the page again from the stored figures: nobody writes figures by hand.
"""

import json
import re
from pathlib import Path
from typing import Final

from tests.bench.chart import Bar, Panel, draw
from tests.bench.markdown import SECTIONS, TITLES
from tests.bench.report import GLANCE, Report, glance

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE, DATA, CHART = DOCS / "benchmarks.md", DOCS / "benchmarks.json", DOCS / "benchmarks.svg"


def save(report: Report) -> None:
    """Store the figures, and render the page and the chart."""
    DATA.write_text(json.dumps(_rounded(report.model_dump(mode="json")), indent=1) + "\n")
    stored = load()
    PAGE.write_text(rendered(PAGE.read_text(), stored))
    CHART.write_text(chart(stored))


def load() -> Report:
    """Read the stored figures."""
    return Report.model_validate_json(DATA.read_text())


def _rounded(value: object) -> object:
    """Keep four digits: more would suggest a precision that is not there."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def rendered(page: str, report: Report) -> str:
    """Return the page with the tables of a report between its marks."""
    for name, render in SECTIONS.items():
        begin, end = f"<!-- bench: {name} -->", f"<!-- end: {name} -->"
        found = re.search(f"{begin}\n.*?{end}", page, re.DOTALL)
        if not found:
            raise ValueError(f"{PAGE.name} lacks the marks {begin} and {end}")
        page = f"{page[: found.start()]}{begin}\n{render(report)}\n{end}{page[found.end() :]}"
    return page


def chart(report: Report) -> str:
    """Return the chart of what the first table shows."""
    panels = [
        Panel(
            title=row.what,
            unit=f"{row.unit}; {'less' if row.is_time else 'more'} is better",
            bars=[
                Bar(TITLES[name], row.values[name], is_ours=name.startswith("redrive"))
                for name in GLANCE
                if name in row.values
            ],
        )
        for row in glance(report)
    ]
    return draw("Redrive, and what one would use instead", report.conditions.place, panels)


if __name__ == "__main__":
    save(load())
