"""Draws bars as SVG: no fonts, scripts or colours from elsewhere, readable on light and dark pages. Pure."""

from dataclasses import dataclass
from html import escape

WIDTH = 860
COLUMNS = 2
PANEL_WIDTH = WIDTH // COLUMNS
LABEL, BAR, GAP = 118, 16, 6
NUMBER = 64
HEAD = 46
MARGIN = 18

STYLE = """
  text { font: 12px sans-serif; fill: #24292f } .title { font-size: 16px; font-weight: bold }
  .head { font-size: 13px; font-weight: bold } .small { font-size: 11px; fill: #57606a }
  .page { fill: #ffffff } .ours { fill: #1f6feb } .other { fill: #8c959f }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .page { fill: #0d1117 }
    .ours { fill: #4493f8 } .other { fill: #656c76 }
  }
"""


@dataclass(frozen=True)
class Bar:
    """One contender's value."""

    name: str
    value: float
    is_ours: bool


@dataclass(frozen=True)
class Panel:
    """The bars of one measurement, drawn to one scale."""

    title: str
    unit: str
    bars: list[Bar]

    @property
    def height(self) -> int:
        """How much room it takes."""
        return HEAD + len(self.bars) * (BAR + GAP) + MARGIN


def draw(title: str, caption: str, panels: list[Panel]) -> str:
    """Return the panels, two in a row, under a title."""
    parts: list[str] = []
    top = 64
    for start in range(0, len(panels), COLUMNS):
        row = panels[start : start + COLUMNS]
        parts += [_panel(panel, MARGIN + number * PANEL_WIDTH, top) for number, panel in enumerate(row)]
        top += max(panel.height for panel in row)
    words = [
        _text(MARGIN, 28, title, "title"),
        _text(MARGIN, 48, caption, "small"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="page" width="{WIDTH}" height="{top}"/>\n' + "\n".join(words + parts) + "\n</svg>\n"
    )


def _panel(panel: Panel, left: int, top: int) -> str:
    parts = [_text(left, top + 16, panel.title, "head"), _text(left, top + 33, panel.unit, "small")]
    room = PANEL_WIDTH - LABEL - NUMBER - MARGIN
    longest = max(bar.value for bar in panel.bars)
    for number, bar in enumerate(panel.bars):
        shown = f"{bar.value:,.0f}" if bar.value >= 20 else f"{bar.value:.1f}"
        y = top + HEAD + number * (BAR + GAP)
        length = max(1.0, room * bar.value / longest)
        parts += [
            _text(left, y + 12, bar.name),
            f'<rect class="{"ours" if bar.is_ours else "other"}" x="{left + LABEL}" y="{y}" '
            f'width="{length:.1f}" height="{BAR}" rx="2"/>',
            _text(left + LABEL + int(length) + 6, y + 12, shown),
        ]
    return "\n".join(parts)


def _text(x: int, y: int, words: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{named}>{escape(words)}</text>'
