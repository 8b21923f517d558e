"""Charts of the report as SVG text: lines with intervals, stacked bars, histograms.

Called by `monitor/page.py`. Invariant: a chart has no script, no colour and no file of its own; the page's style sheet colours the
classes c0, c1, ... for light and dark, and a browser shows the `title` of a point as its tooltip.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 12, 30
MOST_POINTS = 150
"""Points that a line shows; more are averaged in groups of neighbours."""
BINS = 24


class Line(NamedTuple):
    """One curve: points (x, y, low, high); low and high are NaN where there is no interval."""

    label: str
    points: Sequence[tuple[float, float, float, float]]


def line_chart(title: str, unit: str, lines: Sequence[Line], *, span: tuple[float, float] | None = None) -> str:
    """Curves over iterations. `span`: the range of y; by default that of the curves."""
    lines = [Line(line.label, _thinned(line.points)) for line in lines if line.points]
    if not lines:
        return ""
    xs = [point[0] for line in lines for point in line.points]
    ys = [point[1] for line in lines for point in line.points]
    low, high = span or _padded(min(ys), max(ys))
    left, right = min(xs), max(max(xs), min(xs) + 1)
    body = [_axes(low, high, left, right, "iteration")]
    for number, line in enumerate(lines):
        at = [(_x(x, left, right), *(_y(y, low, high) for y in rest)) for x, *rest in line.points]
        band = [(x, a, b) for x, _, a, b in at if math.isfinite(a) and math.isfinite(b)]
        if band:
            around = [*((x, b) for x, _, b in band), *((x, a) for x, a, _ in reversed(band))]
            body.append(f'<polygon class="band c{number}" points="{_path(around)}"/>')
        body.append(f'<polyline class="line c{number}" points="{_path([(x, y) for x, y, *_ in at])}"/>')
        for (x, y, *_), (step, value, a, b) in zip(at, line.points, strict=True):
            between = f" ({_number(a)} to {_number(b)})" if math.isfinite(a) else ""
            tip = f"{escape(line.label)}, iteration {_number(step)}: {_number(value)}{between}"
            body.append(f'<circle class="dot c{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{tip}</title></circle>')
    return _figure(title, unit, body, [line.label for line in lines])


def stacked_bars(title: str, unit: str, names: Sequence[str], columns: Mapping[int, Sequence[float]]) -> str:
    """A bar per iteration; `columns`: iteration -> a height per name."""
    kept = list(columns)[:: math.ceil(len(columns) / MOST_POINTS) or 1]
    top = max(sum(columns[x]) for x in kept) or 1.0
    left, right = min(kept) - 0.5, max(kept) + 0.5
    width = (WIDTH - LEFT - RIGHT) / len(kept)
    body = [_axes(0, top, left, right, "iteration")]
    for place, x in enumerate(kept):
        below = 0.0
        for number, (name, height) in enumerate(zip(names, columns[x], strict=True)):
            y, base = _y(below + height, 0, top), _y(below, 0, top)
            box = f'x="{LEFT + place * width:.1f}" y="{y:.1f}" width="{width:.2f}" height="{base - y:.1f}"'
            tip = f"{escape(name)}, iteration {_number(x)}: {_number(height)} {unit}"
            body.append(f'<rect class="fill c{number}" {box}><title>{tip}</title></rect>')
            below += height
    return _figure(title, unit, body, names)


def histogram(title: str, unit: str, values: Sequence[int]) -> str:
    """How many of the `values` fall into each of at most BINS equal ranges."""
    if not values:
        return ""
    low, high = min(values), max(values) + 1
    counts, edges = np.histogram(values, min(BINS, high - low), (low, high))
    top, places = int(counts.max()), [_x(edge, low, high) for edge in edges.tolist()]
    body = [_axes(0, top, low, high, unit)]
    for at, count in enumerate(counts.tolist()):
        begin, end, y = places[at], places[at + 1], _y(count, 0, top)
        tip = f"{_number(edges[at])} to {_number(edges[at + 1])} {unit}: {count}"
        box = f'x="{begin:.1f}" y="{y:.1f}" width="{max(end - begin - 1, 0.5):.1f}" height="{HEIGHT - BOTTOM - y:.1f}"'
        body.append(f'<rect class="fill c0" {box}><title>{tip}</title></rect>')
    return _figure(title, "states", body, [])


def _figure(title: str, unit: str, body: Sequence[str], labels: Sequence[str]) -> str:
    keys = "".join(f'<span class="key c{n}">{escape(label)}</span>' for n, label in enumerate(labels))
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'
    return (
        f"<figure><figcaption>{escape(title)} <small>{escape(unit)}</small></figcaption>{svg}<div>{keys}</div></figure>"
    )


def _axes(low: float, high: float, left: float, right: float, caption: str) -> str:
    parts = []
    for value in _ticks(low, high):
        y = _y(value, low, high)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 5}" y="{y + 4:.1f}">{_number(value)}</text>')
    for value in (tick for tick in _ticks(left, right) if tick == round(tick)):
        parts.append(
            f'<text class="tick mid" x="{_x(value, left, right):.1f}" y="{HEIGHT - 14}">{_number(value)}</text>'
        )
    return "".join(parts) + f'<text class="tick end" x="{WIDTH - RIGHT}" y="{HEIGHT - 2}">{escape(caption)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers in [low, high].

    >>> _ticks(0, 1), _ticks(1, 20)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [5.0, 10.0, 15.0, 20.0])
    """
    from matplotlib.ticker import MaxNLocator  # imported late: it takes a second

    found = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [tick for tick in (round(float(one), 12) for one in found) if low <= tick <= high]


def _padded(low: float, high: float) -> tuple[float, float]:
    """A range that shows [low, high]; it begins at 0 if all is positive and reaches near it."""
    gap = (high - low) or abs(high) or 1.0
    return (0.0 if 0 <= low < gap else low - 0.05 * gap), high + 0.05 * gap


def _thinned(points: Sequence[tuple[float, float, float, float]]) -> list[tuple[float, float, float, float]]:
    """At most MOST_POINTS points: the means of neighbours."""
    size = math.ceil(len(points) / MOST_POINTS)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    means = [[sum(column) / len(group) for column in zip(*group, strict=True)] for group in groups]
    return [(x, y, low, high) for x, y, low, high in means]


def _x(value: float, left: float, right: float) -> float:
    return LEFT + (value - left) / (right - left) * (WIDTH - LEFT - RIGHT)


def _y(value: float, low: float, high: float) -> float:
    """NaN stays NaN; what is outside [low, high] is drawn at its edge."""
    if math.isnan(value):
        return value
    return HEIGHT - BOTTOM - (min(max(value, low), high) - low) / (high - low) * (HEIGHT - BOTTOM - TOP)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 and value == round(value) else f"{value:.3g}"
