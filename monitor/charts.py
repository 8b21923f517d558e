"""Charts of a run, drawn by matplotlib: each as SVG text for a page, or all as the panels of one picture. Invariant:
the SVG has no script, no file and no colour of its own; the page's style sheet colours it for light and dark, and a
browser shows the `title` of a point or bar as its tooltip."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import MaxNLocator

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8860b", "#cc79a7", "#56b4e9", "#8a6d3b", "#888888")
"""Of lines and bars; the colour-blind tell them apart. A page has its own as --c0, --c1, ..."""
SOFT = "#666677"  # of axes and their text; --soft on a page
MOST_POINTS = 150  # points that a line shows; more are averaged in groups of neighbours
MARKED = 12  # points up to which a line has markers
BINS = 24
STYLE = {
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), SOFT),
    "axes.prop_cycle": cycler(color=COLOURS),  # "C0", "C1", ... begin again at their end
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "font.sans-serif": "DejaVu Sans",
    "svg.fonttype": "none",  # text stays text
}

Points = Sequence[tuple[float, float, float, float]]  # (x, y, low, high); NaN where there is no interval
Range = tuple[float | None, float | None]  # of an axis; None: where the values end


class Chart(NamedTuple):
    """A titled chart: the labels of its colours, and what draws it."""

    title: str
    unit: str
    labels: Sequence[str]
    draw: Callable[[Axes], object]


def line_chart(title: str, unit: str, lines: Mapping[str, Points], span: Range = (None, None)) -> Chart:
    """Curves over iterations by label, without those that have no point. `span`: the range of y."""
    lines = {label: points for label, points in lines.items() if points}

    def _draw(axes: Axes) -> None:
        for index, (label, points) in enumerate(lines.items()):
            x, y, low, high = _thinned(points).T
            marker = "o" if len(x) <= MARKED else ""
            axes.plot(x, y, f"C{index}", label=label, linewidth=1.8, marker=marker, markersize=4, clip_on=False)
            axes.fill_between(x, low, high, color=f"C{index}", alpha=0.18, linewidth=0)
            tips = [_tip(label, *point) for point in zip(x, y, low, high, strict=True)]
            axes.scatter(x, y, alpha=0, zorder=3).set_urls(tips)
        _iterations(axes)
        axes.set_ylim(*span)

    return Chart(title, unit, list(lines), _draw)


def stacked_bars(title: str, unit: str, names: Sequence[str], columns: Mapping[int, Sequence[float]]) -> Chart:
    """A bar per iteration; `columns`: iteration -> a height per name."""

    def _draw(axes: Axes) -> None:
        step = math.ceil(len(columns) / MOST_POINTS)
        shown = list(columns)[::step]
        base = [0.0] * len(shown)
        for index, name in enumerate(names):
            heights = [columns[x][index] for x in shown]
            bars = axes.bar(shown, heights, step, base, label=name)
            for x, bar, height in zip(shown, bars, heights, strict=True):
                bar.set_url(f"{_tip(name, x, height)} {unit}")
            base = [below + height for below, height in zip(base, heights, strict=True)]
        _iterations(axes)

    return Chart(title, unit, names, _draw)


def histogram(title: str, unit: str, values: Sequence[int]) -> Chart:
    """How many of the `values`, of which there is one at least, fall into each of at most BINS equal ranges."""

    def _draw(axes: Axes) -> None:
        low, high = min(values), max(values) + 1
        counts, edges = np.histogram(values, min(BINS, high - low), (low, high))
        bars = axes.bar(edges[:-1], counts, 0.95 * np.diff(edges), align="edge")
        for bar, count, begin, end in zip(bars, counts, edges[:-1], edges[1:], strict=True):
            bar.set_url(f"{begin:.4g} to {end:.4g} {unit}: {count}")
        axes.set_xlabel(unit)

    return Chart(title, "states", (), _draw)


def as_svg(chart: Chart) -> str:
    """The chart without title, unit and labels, as an SVG element that can stand in a page."""
    file = StringIO()
    with _figure(5.8, 3.3) as figure:
        chart.draw(figure.subplots())
        none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=none)
    text = file.getvalue().replace(SOFT, "var(--soft)")
    for index, colour in enumerate(COLOURS):
        text = text.replace(colour, f"var(--c{index})")
    # matplotlib makes a link of what we want as a tooltip
    return re.sub(r'<a xlink:href="([^"]*)"[^>]*>', r"<a><title>\1</title>", text[text.index("<svg") :])


def save_picture(path: Path, heading: str, charts: Sequence[Chart]) -> None:
    """Write the charts as the panels of one PNG file."""
    rows = math.ceil(len(charts) / 4)
    with _figure(18, 3.8 * rows) as figure:
        figure.suptitle(heading, fontsize=13, fontweight="bold")
        for place, chart in enumerate(charts, 1):
            axes = figure.add_subplot(rows, 4, place, title=chart.title, ylabel=chart.unit)
            chart.draw(axes)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=4, fontsize=8, frameon=False)
        temporary = path.with_name(f".{path.name}.tmp")
        figure.savefig(temporary, format="png")
    temporary.replace(path)


@contextmanager
def _figure(width: float, height: float) -> Iterator[Figure]:
    """An empty figure, in inches, and our style inside the block. (No pyplot: no global state, no display.)"""
    with mpl.rc_context(STYLE):
        yield Figure(figsize=(width, height), dpi=100, layout="constrained")


def _iterations(axes: Axes) -> None:
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _thinned(points: Points) -> npt.NDArray[np.float64]:
    """[N, 4] at most MOST_POINTS points: the means of as many neighbours everywhere, give or take one."""
    neighbours = math.ceil(len(points) / MOST_POINTS)
    groups = np.array_split(np.array(points, np.float64), math.ceil(len(points) / neighbours))
    return np.array([group.mean(axis=0) for group in groups])


def _tip(label: str, x: float, y: float, low: float = math.nan, high: float = math.nan) -> str:
    between = f" ({low:.3g} to {high:.3g})" if math.isfinite(low) else ""
    return f"{label}, iteration {x:g}: {y:.3g}{between}"
