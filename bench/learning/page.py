"""The page of the experiment: one table, one plot, bench/results/learning.{md,json,png}, from the table of results.
Invariant: no number without its interval over seeds."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.learning.plan import ARMS, SETTINGS
from bench.report import RESULTS, Check, check, grid, write
from bench.runs import Arms, arms_of, curve, final
from bench.statistics import Difference, Interval, area, cost_ratio, difference, text_of, with_interval
from core.run_directory import read_jsonl
from core.seeds import generator

HALF = 0.5  # held-out success to which tokens are counted
COMPARED = {"imitation": "ppo", "replay": "ppo", "both": "imitation"}
"""What an arm is compared with."""
MEASURES = {
    "before": lambda one: float(one["evaluations"][0]["pass@1"]),
    "area": lambda one: area(curve(one), one["budget"]),
    "at the end": final,
    "seconds": lambda one: float(one["evaluations"][-1]["trained_seconds"]),
}


def read_settings(table: Path) -> dict[str, Arms]:
    """The arms of each setting that has results."""
    rows = read_jsonl(table)
    found = {name: arms_of([row for row in rows if row["run"]["part"] == name], ARMS) for name in SETTINGS}
    return {name: arms for name, arms in found.items() if arms}


def mean(arms: Arms, measure: str, arm: str, other: str = "") -> Difference:
    """A measure of one arm over its seeds, or its paired difference from another arm on the seeds that both have."""
    seeds = sorted(arms[arm].keys() & arms[other or arm].keys())
    mine, theirs = ([MEASURES[measure](arms[name][seed]) for seed in seeds] for name in (arm, other or arm))
    return difference(mine, theirs if other else None)


def tokens_to_half(arms: Arms, arm: str, other: str) -> Interval | None:
    """Generated tokens of `arm` until half of the held-out problems are solved, divided by those of `other`, on the
    seeds that both have; None without such a seed."""
    seeds = sorted(arms.get(arm, {}).keys() & arms.get(other, {}).keys())
    if not seeds:
        return None
    mine, theirs = ([curve(arms[name][seed]) for seed in seeds] for name in (arm, other))
    return cost_ratio(mine, theirs, arms[arm][seeds[0]]["budget"], HALF, generator(0, "bench.learning", arm))


def ratio_text(found: Interval | None, other: str) -> str:
    """The ratio as text; 'at most' where the other arm does not get there in all draws."""
    other = other.replace("ppo", "PPO")
    if found is None:
        return "-"
    if math.isnan(found.value):
        return "neither"
    if found.value == 0:
        return f"{other} never"
    return f"{found.value:.2f} (at most {found.high:.2f})" if found.low == 0 else text_of(found)


def rows_of(setting: str, arms: Arms) -> list[list[str]]:
    """The rows of the table."""
    rows = []
    for arm, seeds in arms.items():
        shares = [with_interval(mean(arms, name, arm), 100) for name in ("before", "area", "at the end")]
        other, less, ratio = COMPARED.get(arm, ""), "-", "-"
        if arms.get(other):
            less = with_interval(mean(arms, "at the end", arm, other), 100)
            ratio = ratio_text(tokens_to_half(arms, arm, other), other)
        seconds = with_interval(mean(arms, "seconds", arm), digits=0)
        rows.append([SETTINGS[setting].title, arm, str(len(seeds)), *shares, less, ratio, seconds])
    return rows


def checks_of(setting: str, arms: Arms) -> list[Check]:
    """The ratios as numbers."""
    found = {arm: tokens_to_half(arms, arm, other) for arm, other in COMPARED.items()}
    return [
        check(f"{setting}: tokens to {HALF}, {arm} / {COMPARED[arm]}", one.value, "ratio")
        for arm, one in found.items()
        if one is not None and 0 < one.value < math.inf
    ]


def draw(found: Mapping[str, Arms], path: Path) -> None:
    """The mean curves with their intervals over seeds, a panel for each setting."""
    from matplotlib.figure import Figure

    columns = min(3, len(found))
    figure = Figure(figsize=(4.6 * columns, 3.6 * math.ceil(len(found) / columns) + 0.6), layout="constrained")
    panels = np.ravel(figure.subplots(math.ceil(len(found) / columns), columns, squeeze=False))
    for panel, (setting, arms) in zip(panels, found.items(), strict=False):
        for at, arm in enumerate(ARMS):
            curves = [curve(one) for one in arms.get(arm, {}).values()]
            if not curves:
                continue
            points = np.linspace(0.0, max(one.cost[-1] for one in curves), 61)
            each = np.array([np.interp(points, one.cost, one.success) for one in curves])
            picks = generator(0, "plot", arm).integers(0, len(each), (500, len(each)))
            low, high = np.quantile(each[picks].mean(axis=1), [0.025, 0.975], axis=0)
            panel.plot(points / 1000, each.mean(axis=0), color=f"C{at}", label=arm)
            panel.fill_between(points / 1000, low, high, color=f"C{at}", alpha=0.12, linewidth=0)
        panel.set(title=SETTINGS[setting].title, ylim=(0, 1.01), xlabel="thousand generated tokens")
    panels[0].set(ylabel="held-out success")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ARMS), frameon=False)
    figure.savefig(path, dpi=60)


def write_page(table: Path, *, quick: bool) -> None:
    """Write page, JSON and plot from the table of results. `quick`: of trials."""
    found = read_settings(table)
    plot = table.with_suffix(".png")
    draw(found, plot)
    heading = ["setting", "arm", "seeds", "success before, %", "area under the curve, %", "success at the end, %"]
    heading += [
        "less PPO's (`both`: imitation's), points",
        f"tokens to {HALF} / those of the same",
        "seconds of training",
    ]
    commits = sorted({one["commit"] for arms in found.values() for seeds in arms.values() for one in seeds.values()})
    rows = [row for setting, arms in found.items() for row in rows_of(setting, arms)]
    shown = f"![curves]({plot.name})" if plot.parent == RESULTS else ""
    lines = [HEAD, shown, "", *grid(heading, rows), f"Commits of the runs: {', '.join(commits)}."]
    checks = [one for setting, arms in found.items() for one in checks_of(setting, arms)]
    write("learning", checks, {"runs": sum(map(int, (row[2] for row in rows)))}, quick=quick, page="\n".join(lines))


HEAD = """# learning

Do replay and imitation learn more than PPO? Models of 0.1 M parameters on three generated tasks
([plan](../learning/plan.py), [how to read it](../README.md#replay-and-imitation-on-generated-tasks)). Numbers are means
over seeds with 95 % t intervals, of ratios with bootstrap intervals.
"""
