# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Draws charts as inline SVG: curves over a logarithmic axis, and points with their spans.

Colours come from the page's style sheet by the classes ``s0`` to ``s5``. Curves also differ in
marker and dashes and have a label at their end, so that readers can distinguish them without
colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Curve", "Point", "draw_curves", "draw_points"]

_WIDTH, _HEIGHT = 760, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 215, 12, 44
#: Vertical distance between two lines of text.
_LINE = 16
#: Number of colours in the style sheet.
_COLOURS = 6

Formatter = Callable[[float], str]


@dataclass(frozen=True)
class Curve:
    """A curve: its name, its points, and whether it is a comparison, which is drawn dashed."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool


@dataclass(frozen=True)
class Point:
    """A value with its range, from ``low`` to ``high``."""

    name: str
    value: float
    low: float
    high: float
    dashed: bool


class _Axis:
    """A logarithmic axis from the values ``low`` to ``high``, drawn from ``start`` to ``end``."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = min(values), max(values)
        if self.high <= self.low * 1.01:
            self.low, self.high = self.low / 2, self.high * 2
        self._start, self._end = start, end

    def coordinate_of(self, value: float) -> float:
        """Return the coordinate of a value on the axis."""
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self._start + part * (self._end - self._start)

    def tick_values(self) -> list[float]:
        """Return round numbers on the axis: powers of ten; on a short axis also their multiples."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        span = self.high / self.low
        digits = (1,) if span > 200 else (1, 2, 5) if span > 10 else tuple(range(1, 10))
        found = [digit * 10.0**e for e in decades for digit in digits]
        return [tick for tick in found if self.low <= tick <= self.high]


def _draw_marker(i: int, x: float, y: float) -> str:
    """Return a marker, whose shape depends on the number of the curve."""
    r = 4.5
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>',
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>',
        f'<path d="M{x:.1f} {y - r:.1f}l{r} {1.8 * r:.1f}h{-2 * r}z"/>',
        f'<path d="M{x:.1f} {y - r - 1:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"/>',
        f'<path d="M{x:.1f} {y + r:.1f}l{r} {-1.8 * r:.1f}h{-2 * r}z"/>',
        f'<path class="line" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>',
    )
    return shapes[i % len(shapes)]


def _spread_label_positions(wanted: Sequence[float]) -> list[float]:
    """Return coordinates near the wanted ones, in the same order, so that labels do not overlap."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    last = -math.inf
    for i in order:
        last = max(wanted[i], last + _LINE)
        placed[i] = last
    below = last - (_HEIGHT - _BOTTOM)
    return [y - below for y in placed] if below > 0 else placed


def _draw_text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _make_svg_element(
    name: str, title: str, description: str, height: float, parts: Sequence[str]
) -> str:
    """Return an SVG element with a title and a description for readers who do not see it."""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-text">{escape(description)}</desc>' + "".join(parts) + "</svg>"
    )


def draw_curves(
    name: str,
    title: str,
    labels: tuple[str, str],
    curves: Sequence[Curve],
    formats: tuple[Formatter, Formatter],
) -> str:
    """Return a chart of curves, both axes logarithmic.

    Args:
        name: an identifier that no other chart of the page has.
        title: what the chart shows.
        labels: the titles of the axes, x and y.
        curves: at least one, each with at least one point.
        formats: return the text of a value on each axis.

    """
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    every = [point for curve in curves for point in curve.points]
    x_axis = _Axis([x for x, _ in every], _LEFT + 8, right - 8)
    y_axis = _Axis([y for _, y in every], bottom - 8, _TOP + 8)
    parts = [f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>']
    for tick in y_axis.tick_values():
        y = y_axis.coordinate_of(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>')
        parts.append(_draw_text(_LEFT - 6, y + 4, formats[1](tick), "end"))
    for value in sorted({x for x, _ in every}):
        parts.append(
            _draw_text(x_axis.coordinate_of(value), bottom + 18, formats[0](value), "middle")
        )
    parts.append(_draw_text((_LEFT + right) / 2, _HEIGHT - 6, labels[0], "middle"))
    ends = _spread_label_positions([y_axis.coordinate_of(curve.points[-1][1]) for curve in curves])
    for i, (curve, end) in enumerate(zip(curves, ends, strict=True)):
        spots = [(x_axis.coordinate_of(x), y_axis.coordinate_of(y)) for x, y in curve.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
        dashes = " dashed" if curve.dashed else ""
        x, y = spots[-1]
        parts.append(
            f'<g class="s{i % _COLOURS}"><path class="line{dashes}" d="M{path}"/>'
            + "".join(_draw_marker(i, *spot) for spot in spots)
            + f'<path class="line thin" d="M{x + 6:.1f} {y:.1f}L{right + 8} {end:.1f}"/>'
            + _draw_marker(i, right + 14, end)
            + "</g>"
            + _draw_text(right + 24, end + 4, curve.name)
        )
    description = f"{labels[1]} by {labels[0]}: " + "; ".join(
        f"{curve.name}: " + ", ".join(f"{formats[0](x)} {formats[1](y)}" for x, y in curve.points)
        for curve in curves
    )
    return _make_svg_element(name, title, description, _HEIGHT, parts)


def draw_points(name: str, title: str, label: str, points: Sequence[Point], form: Formatter) -> str:
    """Return a chart with a line for each value and its span, on a logarithmic axis.

    Args:
        name: an identifier that no other chart of the page has.
        title: what the chart shows.
        label: the title of the axis.
        points: at least one.
        form: returns the text of a value.

    """
    left, row = 290, 24
    bottom = _TOP + row * len(points) + 6
    axis = _Axis([v for point in points for v in (point.low, point.high)], left, _WIDTH - 95)
    parts = [f'<path class="axis" d="M{left - 8} {_TOP}V{bottom}H{_WIDTH - 8}"/>']
    for tick in axis.tick_values():
        x = axis.coordinate_of(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>')
        parts.append(_draw_text(x, bottom + 16, form(tick), "middle"))
    parts.append(_draw_text((left + _WIDTH) / 2, bottom + 34, label, "middle"))
    for i, point in enumerate(points):
        y = _TOP + row * (i + 0.5) + 2
        x = axis.coordinate_of(point.value)
        span = f"M{axis.coordinate_of(point.low):.1f} {y:.1f}H{axis.coordinate_of(point.high):.1f}"
        kind = 1 if point.dashed else 0
        parts.append(
            f'<g class="s{kind}"><path class="line" d="{span}"/>{_draw_marker(kind, x, y)}</g>'
            + _draw_text(left - 14, y + 4, point.name, "end")
            + _draw_text(axis.coordinate_of(point.high) + 10, y + 4, form(point.value))
        )
    description = f"{label}: " + "; ".join(f"{p.name}: {form(p.value)}" for p in points)
    return _make_svg_element(name, title, description, bottom + 42, parts)
