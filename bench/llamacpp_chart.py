"""Result lines of bench/llamacpp.py as an SVG: a panel a wire and kind, a bar a contender.

It writes text only and decides nothing about the figures.
"""

from __future__ import annotations

import itertools
from html import escape
from typing import TYPE_CHECKING, Any

from chart import COLOURS, DARK, LIGHT, SHAPES
from llamacpp_report import WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, LEFT, RIGHT = 760, 120, 600
BAR, STEP, HEAD, GAP, TOP, FOOT = 14, 22, 24, 14, 56, 40
TITLE = "SmolLM2-135M Q4_1: tokens a second, whole and split"


def draw(lines: Sequence[dict[str, Any]], machine: dict[str, Any]) -> str:
    """The whole picture; every panel has a scale of its own."""
    measured = [one for one in lines if "ratio" in one]
    parts, y = [], TOP
    for (wire, streams, kind), group in itertools.groupby(
        sorted(measured, key=lambda one: (one["wire"], one["kind"], one["streams"])),
        key=lambda one: (one["wire"], one["streams"], one["kind"]),
    ):
        bars = list(group)
        scale = (RIGHT - LEFT) / max(one["tokens_s_high"] for one in bars)
        word = "stream" if streams == 1 else "streams"
        parts.append(_text(16, y + 12, f"{wire}, {kind}, {streams} {word}", "size"))
        y += HEAD
        for one in bars:
            parts += _bar(one, y, scale)
            y += STEP
        y += GAP
    foot = f"{machine.get('processor')}, {machine.get('cores')} cores, load {machine.get('load')}"
    parts.append(_text(16, y + 16, foot, "soft"))
    style = COLOURS.format(**LIGHT) + SHAPES
    dark = COLOURS.format(**DARK)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + FOOT}" '
        f'width="{WIDTH}" height="{y + FOOT}" role="img"><title>{escape(TITLE)}</title>'
        f"<style>{style}@media(prefers-color-scheme:dark){{{dark}}}</style>"
        f'<rect class="paper" width="100%" height="100%"/>'
        + _text(16, 30, TITLE, "title")
        + "".join(parts)
        + "</svg>\n"
    )


def _bar(one: dict[str, Any], y: int, scale: float) -> list[str]:
    name = one["contender"]
    kind = "floor" if name == WHOLE else "ours" if name.startswith("ring") else "rival"
    low, high = (LEFT + one[key] * scale for key in ("tokens_s_low", "tokens_s_high"))
    middle = y + BAR / 2
    figure = f"{one['tokens_s']:.1f} ({one['ratio']:.2f})"
    return [
        _text(16, y + 12, name, "name-ours" if kind == "ours" else ""),
        (
            f'<rect class="{kind}" x="{LEFT}" y="{y}" height="{BAR}" '
            f'width="{one["tokens_s"] * scale:.1f}"/>'
        ),
        f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}"/>',
        _text(RIGHT + 12, y + 12, figure, "figure"),
    ]


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
