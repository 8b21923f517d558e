"""The plots of the experiment: one per setting, and one of all settings. Arms are named in words, in one legend below
the panels."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.learning.measures import LEARNT
from bench.learning.plan import ARMS, SETTINGS, with_solutions
from bench.learning.results import ABLATED, ENOUGH, OURS, Arms, Setting, curve, success_before
from bench.learning.statistics import on_grid
from core.seeds import generator

WORDS: Mapping[str, str] = {
    "ppo": "PPO, 32 problems",
    "ppo_small": "PPO, 8 problems",
    "ppo_growing": "PPO, 8 to 16 problems",
    "ppo_falling": "PPO, 8 to 16, learning rate falls",
    "ppo_kl": "PPO, KL that fades",
    "ppo_kl_falling": "PPO, KL that fades, learning rate falls",
    "ppo_imitating": "imitation, weak KL",
    "ppo_kl_imitating": "imitation",
    "grpo": "GRPO, 32 problems",
    "grpo_kl": "GRPO, KL that fades",
    "ppo_resample": "PPO, resampling",
    "grpo_resample": "GRPO, resampling",
    "oversampling_small": "PPO, hard problems more often",
    "oversampling_kl": "PPO, hard problems more often, KL that fades",
    "uniform_small": "replay of random states",
    "uniform_filtered_small": "replay, each state as often",
    "value_small": "replay by the critic's value",
    "success_prefix_small": "replay of success prefixes",
    "frontier_small": "replay, frontier",
    ABLATED: "replay",
    OURS: "replay and imitation",
    "learnability_falling": "replay, learning rate falls",
    "defaults": "replay and imitation, settings of the recipes",
    "learnability_grpo": "replay, GRPO's advantages",
    "value_canonical": "by the critic's value, with given solutions",
    "learnability_canonical": "replay, with given solutions",
}
"""The arms of the plots: no ablations, and of the arms with 32 fresh problems only `ppo` and `grpo`."""
SHOWN = (
    "ppo", "ppo_small", "ppo_growing", "ppo_falling", "ppo_kl", "grpo", "value_small", "ppo_imitating",
    "ppo_kl_imitating", ABLATED, OURS,
)  # fmt: skip
"""Arms of the plot that shows all settings."""
TITLES: Mapping[str, str] = {
    "rule": "hidden rule, {} lines",
    "stories": "word problems, {} steps",
    "lock": "lock, {} presses",
    "countdown": "countdown, {} operations",
    "arithmetic": "arithmetic, from {} operations",
}
Panel = tuple[Arms, str, str]  # what it shows, its cost (`COSTS`), its title

COSTS = {
    "generated": ("thousand generated tokens", 1000.0),
    "trained": ("thousand trained tokens", 1000.0),
    "seconds": ("seconds", 1.0),
}
"""What a run costs: axis of a plot and its unit."""


def title_of(setting: Setting, arms: Arms) -> str:
    """The setting in words, with its success before training."""
    task, hardness = setting
    steps = SETTINGS[task][hardness].fields["task.min_operations"]
    title = TITLES[task].format(steps)
    before = 100 * np.mean(success_before(arms))
    number = f"{before:.2g}" if before > 0.1 else f"{before:.2f}"
    return f"{title.removesuffix('es') if steps == 1 else title}: {number} % before training"


def panels_of(setting: Setting, arms: Arms) -> list[Panel]:
    """One setting against each cost."""
    shown = {arm: seeds for arm, seeds in arms.items() if arm in WORDS}
    return [(shown, cost, "" if at else title_of(setting, arms)) for at, cost in enumerate(COSTS)]


def overview(found: Mapping[Setting, Arms]) -> list[Panel]:
    """Every setting that some arm learns against generated tokens; only the arms `SHOWN` that have `ENOUGH` seeds."""
    panels: list[Panel] = []
    for setting, arms in found.items():
        chosen = {arm: seeds for arm, seeds in arms.items() if len(seeds) >= ENOUGH and arm in SHOWN}
        curves = [[curve(one).success for one in seeds.values()] for seeds in chosen.values()]
        gains = [np.mean([success[-1] - success[0] for success in each]) for each in curves]
        if max(gains, default=0.0) > LEARNT:
            panels.append((chosen, "generated", title_of(setting, arms)))
    return panels


def draw(panels: Sequence[Panel], path: Path) -> None:
    """The mean curves with their intervals over seeds, three side by side; no file without a panel."""
    from matplotlib.figure import Figure

    if not panels:
        return
    columns = min(len(panels), len(COSTS))
    rows = math.ceil(len(panels) / len(COSTS))
    figure = Figure(figsize=(5.0 * columns, 4.2 * rows + 1.2), layout="constrained")
    handles: dict[str, Any] = {}
    for at, (arms, cost, title) in enumerate(panels, 1):
        panel = figure.add_subplot(rows, columns, at)
        handles |= _curves(panel, arms, cost)
        panel.set(title=title)
        if at % len(COSTS) == 1:
            panel.set(ylabel="held-out success")
    handles = {WORDS[arm]: handles[arm] for arm in WORDS if arm in handles}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=10, frameon=False)
    figure.savefig(path, dpi=80)


FAMILIES = list(dict.fromkeys(arm.removesuffix("_small") for arm in (OURS, *SHOWN, *WORDS)))
"""Arms that have one color in all panels: where both batches are arms, the line of the small one is dotted."""


def _curves(panel: Any, arms: Arms, cost: str) -> dict[str, Any]:
    """Draw the arms; returns the line of each."""
    from matplotlib import color_sequences

    shades = color_sequences["tab20"]
    colors = [*shades[::2], *shades[1::2], *color_sequences["tab20b"]]  # the ten strong ones first
    title, unit = COSTS[cost]
    lines = {}
    for arm in (one for one in WORDS if one in arms):
        curves = [curve(one, cost) for one in arms[arm].values()]
        grid = np.linspace(0.0, max(one.tokens[-1] for one in curves), 61)
        each = np.array([on_grid(one, grid) for one in curves])
        picks = generator(0, "plot", arm).integers(0, len(each), (500, len(each)))
        low, high = np.quantile(each[picks].mean(axis=1), [0.025, 0.975], axis=0)
        usual = arm.removesuffix("_small")
        style = "--" if with_solutions(arm) else ":" if arm != usual in ARMS else "-"
        color = colors[FAMILIES.index(usual) % len(colors)]
        (lines[arm],) = panel.plot(grid / unit, each.mean(axis=0), style, color=color)
        panel.fill_between(grid / unit, low, high, color=color, alpha=0.12, linewidth=0)
    panel.set(xlabel=title, ylim=(0, 1.01))
    return lines
