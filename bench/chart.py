"""Figures as an SVG bar chart: one panel a row size, one bar a contender, the spread as whiskers.

It writes text only, uses no plotting library and decides nothing about the figures.
"""

from __future__ import annotations

import itertools
import math
import statistics
import textwrap
from html import escape
from typing import TYPE_CHECKING

from figures import OURS, REFERENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from figures import Figure, Key

WIDTH, LEFT, RIGHT = 760, 168, 592  # The plot lies between LEFT and RIGHT, figures beyond it.
BAR, STEP, PANEL_HEAD, PANEL_GAP = 14, 22, 26, 16
TOP, MARGIN = 74, 16
TICKS = 5
FOOT_LETTERS = 100  # What fits in a line of the foot in a wide typeface.
HEADROOM = 1.15  # How far beyond the longest bar the scale goes; a longer whisker is cut off.
OUTLIER = 6  # A bar longer than this many medians is cut off too, or it would flatten the others.
# Colours are written out a second time for dark pages: not every reader of SVG knows variables.
LIGHT = {"paper": "#ffffff", "ink": "#1f2328", "soft": "#59636e", "grid": "#d8dee4"}
LIGHT |= {"ours": "#1f6feb", "rival": "#d4a24c", "floor": "#9aa4af"}
DARK = {"paper": "#0d1117", "ink": "#f0f6fc", "soft": "#9198a1", "grid": "#30363d"}
DARK |= {"ours": "#4493f8", "rival": "#b5832f", "floor": "#6e7681"}
COLOURS = """\
text,.cut{{fill:{ink}}}.soft{{fill:{soft}}}.paper{{fill:{paper}}}.grid{{stroke:{grid}}}
.ours{{fill:{ours}}}.rival{{fill:{rival}}}.floor{{fill:{floor}}}
.whisker{{stroke:{ink}}}.mark{{stroke:{soft}}}.before{{fill:{paper};stroke:{ink}}}
"""
SHAPES = """\
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
.title{font-size:15px;font-weight:600}.size,.name-ours{font-weight:600}
.figure{font-variant-numeric:tabular-nums}
.whisker{stroke-width:1.25;fill:none}.mark{stroke-dasharray:3 3}.before{stroke-width:1.25}
"""


def draw(
    figures: Mapping[Key, Figure], title: str, notes: Sequence[str], before: Mapping[Key, Figure]
) -> str:
    """The whole picture, sorted by time within each size.

    ``notes`` are lines for its foot (machine, skipped peers); a contender also in ``before``
    gets a diamond where it was.
    """
    ordered = sorted(figures.values(), key=lambda one: (one.key.size, one.us))
    panels = [list(group) for _, group in itertools.groupby(ordered, lambda one: one.key.size)]
    scale = _Scale(_longest([one.us for one in ordered]))
    parts, y = [], TOP
    for panel in panels:
        parts += _panel(panel, y, scale, before)
        y += PANEL_HEAD + STEP * len(panel) + PANEL_GAP
    foot = y + 60
    said = [_legend(bool(before)), *notes]
    lines = [line for one in said for line in textwrap.wrap(one, FOOT_LETTERS)]
    height = foot + 17 * len(lines) + MARGIN - 8
    body = "\n".join([*_head(title), *_axis(y, scale), *parts, *_foot(lines, foot)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n<style>{_style()}</style>\n'
        f'<rect width="{WIDTH}" height="{height}" class="paper"/>\n{body}\n</svg>\n'
    )


def _style() -> str:
    dark = COLOURS.format_map(DARK)
    return f"{SHAPES}{COLOURS.format_map(LIGHT)}@media (prefers-color-scheme:dark){{{dark}}}"


class _Scale:
    """Microseconds to places along the plot, from 0 to a round number past the longest bar."""

    def __init__(self, longest: float) -> None:
        self.step = _round_step(longest * HEADROOM / TICKS)
        self.end = self.step * math.ceil(longest * HEADROOM / self.step)

    def at(self, us: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * min(us, self.end) / self.end, 1)

    def ticks(self) -> list[float]:
        return [self.step * index for index in range(round(self.end / self.step) + 1)]


def _longest(times: Sequence[float]) -> float:
    limit = OUTLIER * statistics.median(times)
    return max(us for us in times if us <= limit)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... that is at least ``least``."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(power * lead for lead in (1, 2, 5, 10) if power * lead >= least)


def _text(x: float, y: float, said: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(said)}</text>'


def _line(x: float, y: float, end_x: float, end_y: float, kind: str) -> str:
    return f'<path d="M{x} {y}L{end_x} {end_y}" class="{kind}"/>'


def _head(title: str) -> list[str]:
    return [
        _text(MARGIN, 28, title, "title"),
        _text(RIGHT + 50, 58, "µs", "soft", "end"),
        _text(WIDTH - MARGIN, 58, "times C, spin", "soft", "end"),
    ]


def _axis(bottom: float, scale: _Scale) -> list[str]:
    parts = []
    for tick in scale.ticks():
        x = scale.at(tick)
        parts.append(_line(x, TOP - 6, x, bottom, "grid"))
        parts.append(_text(x, bottom + 15, f"{tick:g}", "soft figure", "middle"))
    middle = (LEFT + RIGHT) / 2
    parts.append(_text(middle, bottom + 32, "round trip, microseconds", "soft", "middle"))
    return parts


def _panel(
    panel: Sequence[Figure], top: float, scale: _Scale, before: Mapping[Key, Figure]
) -> list[str]:
    floors = [one.us for one in panel if one.key.is_floor]
    parts = [_text(MARGIN, top + 12, f"{panel[0].key.size / 1024:g} KiB each way", "size")]
    for index, one in enumerate(panel):
        y = top + PANEL_HEAD + STEP * index
        parts += _bar(one, y, scale)
        parts += [_times(one.us / floor, y) for floor in floors]
        if one.key in before:
            x, middle = scale.at(before[one.key].us), y + BAR / 2
            parts.append(f'<path d="M{x - 5:.1f} {middle}l5 -5l5 5l-5 5z" class="before"/>')
    bottom = top + PANEL_HEAD + STEP * (len(panel) - 1) + BAR
    for floor in floors:
        x = scale.at(floor)
        parts.append(_line(x, top + PANEL_HEAD - 6, x, bottom + 6, "mark"))
    return parts


def _bar(one: Figure, y: float, scale: _Scale) -> list[str]:
    kind = {OURS: "ours", REFERENCE: "floor"}.get(one.key.name, "rival")
    middle, wide = y + BAR / 2, round(scale.at(one.us) - LEFT, 1)
    low, high = scale.at(one.us_low), scale.at(one.us_high)
    return [
        _text(LEFT - 8, y + 11, one.key.label, f"name-{kind}", "end"),
        f'<rect x="{LEFT}" y="{y}" width="{wide}" height="{BAR}" rx="2" class="{kind}"/>',
        _line(low, middle, high, middle, "whisker"),
        _line(low, middle - 4, low, middle + 4, "whisker"),
        _cap(one.us_high > scale.end, high, middle),
        _text(RIGHT + 50, y + 11, f"{one.us:.1f}", "figure", "end"),
    ]


def _times(ratio: float, y: float) -> str:
    return _text(WIDTH - MARGIN, y + 11, f"{ratio:.2f}", "figure", "end")


def _cap(is_cut: bool, x: float, y: float) -> str:
    """The end of a whisker: a bar across, or an arrow where it goes on past the scale."""
    if is_cut:
        return f'<path d="M{x} {y - 4}l6 4l-6 4z" class="cut"/>'
    return _line(x, y - 4, x, y + 4, "whisker")


def _legend(has_before: bool) -> str:
    said = "Bar: median of the runs. Whisker: lowest and highest run. Arrow: goes on. "
    said += "Dashed: C, spinning."
    return said + (" ◇: before." if has_before else "")


def _foot(lines: Sequence[str], top: float) -> list[str]:
    return [_text(MARGIN, top + 17 * index, line, "soft") for index, line in enumerate(lines)]
