"""The plots of the experiment: one per setting, and one of all settings."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.learning.measures import LEARNT
from bench.learning.plan import ABLATIONS, ARMS, with_solutions
from bench.learning.results import ABLATED, ENOUGH, OURS, Arms, Setting, curve, success_before
from bench.learning.statistics import on_grid
from core.seeds import generator

SHOWN = (
    "ppo", "ppo_small", "ppo_growing", "ppo_falling", "ppo_kl", "grpo", "value_small", "ppo_imitating",
    "ppo_kl_imitating", ABLATED, OURS,
)  # fmt: skip
"""Arms of the plot that shows all settings."""
MOST_INSIDE = 10  # arms of a panel's legend; a longer one stands beside the panels
Panel = tuple[Arms, str, str]  # what it shows, its cost (`COSTS`), its title; without a title it has no legend

COSTS = {
    "generated": ("thousand generated tokens", 1000.0),
    "trained": ("thousand trained tokens", 1000.0),
    "seconds": ("seconds", 1.0),
}
"""What a run costs: axis of a plot and its unit."""


def panels_of(setting: Setting, arms: Arms) -> list[Panel]:
    """One setting against each cost: no ablations, and of the arms with 32 fresh problems only `ppo` and `grpo`."""
    usual = {arm for arm in ARMS if arm in SHOWN or "rollout.starts" in ARMS[arm]}
    shown = {arm: seeds for arm, seeds in arms.items() if arm in usual and arm not in ABLATIONS}
    return [(shown, cost, "" if at else ", ".join(setting)) for at, cost in enumerate(COSTS)]


def overview(found: Mapping[Setting, Arms]) -> list[Panel]:
    """Every setting that some arm learns against generated tokens; only the arms `SHOWN` that have `ENOUGH` seeds."""
    panels: list[Panel] = []
    for setting, arms in found.items():
        chosen = {arm: seeds for arm, seeds in arms.items() if len(seeds) >= ENOUGH and arm in SHOWN}
        curves = [[curve(one).success for one in seeds.values()] for seeds in chosen.values()]
        gains = [np.mean([success[-1] - success[0] for success in each]) for each in curves]
        if max(gains, default=0.0) > LEARNT:
            start = np.mean(success_before(chosen))
            title = f"{', '.join(setting)} (root success {start:.1g} at the start)"
            panels.append((chosen, "generated", title))
    return panels


def draw(panels: Sequence[Panel], path: Path) -> None:
    """The mean curves with their intervals over seeds, three side by side; no file without a panel."""
    from matplotlib.figure import Figure

    if not panels:
        return
    rows = math.ceil(len(panels) / len(COSTS))
    figure = Figure(figsize=(5.0 * min(len(panels), len(COSTS)), 4.2 * rows), layout="constrained")
    for at, (arms, cost, title) in enumerate(panels, 1):
        panel = figure.add_subplot(rows, min(len(panels), len(COSTS)), at)
        _curves(panel, arms, cost)
        if title:
            panel.set(title=title)
            look: dict[str, Any] = {"fontsize": 7, "title": "arm (seeds)", "title_fontsize": 7}
            if len(arms) <= MOST_INSIDE:
                panel.legend(**look)
            else:
                figure.legend(*panel.get_legend_handles_labels(), loc="outside right upper", **look)
        if at % len(COSTS) == 1:
            panel.set(ylabel="held-out success")
    figure.savefig(path, dpi=80)


FAMILIES = list(dict.fromkeys(arm.removesuffix("_small") for arm in (OURS, *SHOWN, *ARMS)))
"""Arms that have one color in all panels: where both batches are arms, the line of the small one is dotted."""


def _curves(panel: Any, arms: Arms, cost: str) -> None:
    from matplotlib import color_sequences

    shades = color_sequences["tab20"]
    colors = [*shades[::2], *shades[1::2], *color_sequences["tab20b"]]  # the ten strong ones first
    title, unit = COSTS[cost]
    for arm in (one for one in ARMS if one in arms):
        curves = [curve(one, cost) for one in arms[arm].values()]
        grid = np.linspace(0.0, max(one.tokens[-1] for one in curves), 61)
        each = np.array([on_grid(one, grid) for one in curves])
        picks = generator(0, "plot", arm).integers(0, len(each), (500, len(each)))
        low, high = np.quantile(each[picks].mean(axis=1), [0.025, 0.975], axis=0)
        usual = arm.removesuffix("_small")
        style = "--" if with_solutions(arm) else ":" if arm != usual in ARMS else "-"
        color = colors[FAMILIES.index(usual) % len(colors)]
        panel.plot(grid / unit, each.mean(axis=0), style, color=color, label=f"{arm} ({len(each)})")
        panel.fill_between(grid / unit, low, high, color=color, alpha=0.12, linewidth=0)
    panel.set(xlabel=title, ylim=(0, 1))
