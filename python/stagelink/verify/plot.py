"""Small plots as SVG text: points by position and bars by name, on a logarithmic axis.

It draws numbers that are given; which ones, and what they mean, the page says.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 720, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34
# Zero has no logarithm: it is drawn on the lower edge.
_LEAST = 1e-16
_BAR = 24
# Series whose names have room under the axis.
_NAMED = 6
_LABEL = 260


def points(
    series: Sequence[tuple[str, Sequence[float]]], *, limit: float | None, across: str
) -> str:
    """Return one point a value, a colour a series, with the limit as a dashed line."""
    values = [value for _, found in series for value in found]
    if not values:
        return ""
    low, high = _decades([*values, *([limit] if limit else [])])
    longest = max(len(found) for _, found in series)
    parts = _axis(low, high)
    for index, (name, found) in enumerate(series):
        dots = "".join(
            f'<circle cx="{_across(at, longest):.1f}" cy="{_up(value, low, high):.1f}" r="2">'
            f"<title>{escape(name)}, {across} {at}: {value:.2e}</title></circle>"
            for at, value in enumerate(found)
        )
        parts.append(f'<g class="s{index % 6}">{dots}</g>')
        if index < _NAMED:
            at = _LEFT + 90 * index
            parts.append(
                f'<text class="s{index % 6}" x="{at}" y="{_HEIGHT - 6}">{escape(name)}</text>'
            )
    if limit:
        up = _up(limit, low, high)
        parts.append(
            f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up:.1f}" y2="{up:.1f}"/>'
        )
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{escape(across)}'
        f" 0 to {longest - 1}</text>"
    )
    return _svg("".join(parts), _WIDTH, _HEIGHT)


def bars(found: Sequence[tuple[str, float, bool]], *, limit: float | None) -> str:
    """Return one bar a name; the third value says whether it is too long."""
    if not found:
        return ""
    low, high = _decades([value for _, value, _ in found] + ([limit] if limit else []))
    height = _BAR * len(found) + 8
    span = _WIDTH - _LABEL - 90
    parts = []
    for index, (name, value, is_off) in enumerate(found):
        y = index * _BAR + 4
        size = span * _share(value, low, high)
        kind = "off" if is_off else "s0"
        parts.append(
            f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="{kind}" x="{_LABEL}" y="{y + 3}" width="{max(size, 1):.1f}" '
            'height="16"/>'
            f'<text x="{_LABEL + size + 6:.1f}" y="{y + 15}">{value:.1e}</text>'
        )
    if limit:
        at = _LABEL + span * _share(limit, low, high)
        parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}"/>')
    return _svg("".join(parts), _WIDTH, height)


def steps(found: Sequence[tuple[str, int, int | None, bool]]) -> str:
    """Return one line a name: tokens alike up to the split, where there is one.

    Each element is name, tokens, index of the first that differs, and whether that is a tie.
    """
    if not found:
        return ""
    height = _BAR * len(found) + 8
    span = _WIDTH - _LABEL - 160
    most = max(tokens for _, tokens, _, _ in found) or 1
    parts = []
    for index, (name, tokens, at, is_tie) in enumerate(found):
        y = index * _BAR + 4
        size = span * tokens / most
        parts.append(
            f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="s0" x="{_LABEL}" y="{y + 3}" width="{size:.1f}" height="16"/>'
        )
        says = f"all {tokens} tokens"
        if at is not None:
            begin = span * at / most
            kind = "tie" if is_tie else "off"
            parts.append(
                f'<rect class="{kind}" x="{_LABEL + begin:.1f}" y="{y + 3}" '
                f'width="{max(size - begin, 3):.1f}" height="16"/>'
            )
            says = f"splits at token {at}" + (" (a tie)" if is_tie else "")
        parts.append(f'<text x="{_LABEL + size + 6:.1f}" y="{y + 15}">{says}</text>')
    return _svg("".join(parts), _WIDTH, height)


def _svg(inside: str, width: float, height: float) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img">{inside}</svg>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten that all values lie between; zeros are drawn on the lower edge."""
    sizes = [min(max(value, _LEAST), 1e16) for value in values if value > 0]
    if not sizes:
        return -16, -15
    low = math.floor(math.log10(min(sizes)))
    return low, max(low + 1, math.ceil(math.log10(max(sizes))))


def _share(value: float, low: int, high: int) -> float:
    """Return where between two powers of ten a value lies, 0 to 1."""
    size = math.log10(min(max(value, _LEAST), 1e16))
    return min(1.0, max(0.0, (size - low) / (high - low)))


def _up(value: float, low: int, high: int) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * _share(value, low, high)


def _across(at: int, longest: int) -> float:
    return _LEFT + 6 + (_WIDTH - _LEFT - _RIGHT - 12) * at / max(1, longest - 1)


def _axis(low: int, high: int) -> list[str]:
    step = max(1, (high - low) // 5)
    return [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">1e{power}</text>'
        for power in range(low, high + 1, step)
        for at in (_up(10.0**power, low, high),)
    ]
