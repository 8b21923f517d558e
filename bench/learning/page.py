"""The page of the experiment: bench/results/learning.md and .json, and one plot per setting, from all result files.

Called by `bench/learning/__main__.py`. Invariant: no number without its interval over seeds, and none from arms of unlike commits
without saying so.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.learning.measures import Curve, area, plain, tokens_to
from bench.learning.plan import ARMS, HARDNESSES, with_solutions
from bench.learning.statistics import (
    Interval,
    mean_over_seeds,
    median_over_seeds,
    on_grid,
    token_ratio,
    tokens_to_mastery,
)
from bench.report import Check, check, write
from core.seeds import generator

Result = dict[str, Any]
BASELINES = ("ppo", "ppo_small", "grpo", "oversampling", "oversampling_small")
OURS = "learnability_small"
OTHERS = ("value", "value_small", "uniform", "uniform_small")
"""Rankings that ours must beat."""
SHOWN = ("ppo", "ppo_small", "value", "value_small", "learnability", OURS)
"""Arms of the plot that shows all settings."""
LEVEL = 0.8
"""Held-out success that counts as mastery."""
ENOUGH = 5
"""Seeds from which a goal is judged."""
HALF, FREE = 0.5, 1.05
"""Goals of the token ratio: medium and hard, and easy."""

Setting = tuple[str, str]
"""Task and hardness."""
Arms = Mapping[str, Mapping[int, Result]]
"""Arm -> seed -> result, of one setting."""
Panel = tuple[Arms, str, str]
"""One diagram of a plot: what it shows, its cost (`COSTS`) and its title; without a title it has no legend."""


def read_results(folder: Path) -> dict[Setting, dict[str, dict[int, Result]]]:
    """The arms of each setting, of all complete result files."""
    found: dict[Setting, dict[str, dict[int, Result]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        run = result["run"]
        found[run["task"], run["hardness"]][run["arm"]][run["seed"]] = result
    return {setting: dict(arms) for setting, arms in found.items()}


def curve(result: Result, cost: str = "generated") -> Curve:
    """Held-out success (pass@1) against generated tokens, or against `trained` tokens or `seconds`."""
    rows = result["rows"]
    return Curve([row[cost] for row in rows], [row["pass@1"]["mean"] for row in rows])


def average(result: Result, name: str) -> float:
    """Mean of a column over a run's evaluations; NaN if it has no value anywhere."""
    known = [row[name] for row in result["rows"] if row.get(name) is not None]
    return sum(known) / len(known) if known else math.nan


def measures(results: Sequence[Result]) -> dict[str, Interval]:
    """All measures of one arm over its seeds."""
    rng = generator(0, "bench.learning")
    curves, budget = [curve(one) for one in results], results[0]["budget"]
    last = max(results[0]["final"], key=lambda name: int(name[5:]) if name.startswith("pass@") else 0)
    per_seed = {
        "final success": [one["final"]["pass@1"]["mean"] for one in results],
        "area": [area(one, budget) for one in curves],
        last: [one["final"][last]["mean"] for one in results],
        "replayed success": [average(one, "replay_success") for one in results],
        "erroneous": [average(one, "erroneous_share") for one in results],
        "learnability": [average(one, "learnability") for one in results],
        "AUC within": [average(one, "value_auc_within") for one in results],
        "seconds": [one["final"]["seconds"] for one in results],
        "trained tokens": [one["final"]["trained"] for one in results],
    }
    found = {name: mean_over_seeds(values, rng) for name, values in per_seed.items()}
    first = [one["first_success"]["root"] for one in results]
    times = {
        "first success": [math.inf if at is None else float(at) for at in first],
        "then to mastery": [tokens_to_mastery(c, at, LEVEL) for c, at in zip(curves, first, strict=True)],
        "tokens to mastery": [tokens_to(one, LEVEL) for one in curves],
    }
    return found | {name: median_over_seeds(values, rng) for name, values in times.items()}


def best_baseline(arms: Arms) -> str | None:
    """The baseline with the largest area under its curves, of those with the most seeds; None without a baseline."""
    most = max((len(arms[name]) for name in BASELINES if name in arms), default=0)
    known = [name for name in BASELINES if name in arms and len(arms[name]) == most]
    areas = {name: np.mean([area(curve(one), one["budget"]) for one in arms[name].values()]) for name in known}
    return max(known, key=lambda name: areas[name], default=None)


def ratio_to(arms: Arms, arm: str, baseline: str, level: float | None = None) -> Interval | None:
    """The token ratio of two arms on the seeds that both have (`token_ratio`); None without such a seed."""
    seeds = sorted(arms[arm].keys() & arms[baseline].keys())
    if not seeds:
        return None
    mine, theirs = ([curve(arms[name][seed]) for seed in seeds] for name in (arm, baseline))
    return token_ratio(mine, theirs, arms[arm][seeds[0]]["budget"], level, generator(0, "bench.learning", arm))


def text_of(value: Interval | None, scale: float = 1.0, digits: int = 2) -> str:
    """The value with its interval, of one seed without; '-' where there is no value.

    >>> text_of(Interval(0.5, 0.25, 0.75, 5)), text_of(Interval(math.inf, 1000, math.inf, 5), 1e-3, 0)
    ('0.50 (0.25 to 0.75)', 'never (1 to never)')
    """
    if value is None or math.isnan(value.value):
        return "-"
    shown = ["never" if math.isinf(x) else f"{x * scale:.{digits}f}" for x in (value.value, value.low, value.high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if value.seeds > 1 else f"{shown[0]} (one seed)"


COLUMNS: Sequence[tuple[str, str, float, int]] = (
    ("final success", "final success", 1.0, 2),
    ("area", "area", 1.0, 2),
    ("tokens to mastery", "to mastery, k tokens", 1e-3, 0),
    ("first success", "first success, k tokens", 1e-3, 0),
    ("then to mastery", "then to mastery, k tokens", 1e-3, 0),
    ("replayed success", "replayed success", 1.0, 2),
    ("erroneous", "erroneous", 1.0, 2),
    ("learnability", "learnability", 1.0, 2),
    ("AUC within", "AUC within", 1.0, 2),
    ("trained tokens", "trained, k tokens", 1e-3, 0),
    ("seconds", "seconds", 1.0, 0),
)
"""Measure, heading, factor, digits."""


def success_before(arms: Arms) -> list[float]:
    """Held-out success of every run before training."""
    return [one["rows"][0]["pass@1"]["mean"] for seeds in arms.values() for one in seeds.values()]


def section(setting: Setting, arms: Arms, plot: str) -> list[str]:
    """The table of one setting, arms with canonical solutions last."""
    baseline = best_baseline(arms)
    results = [one for seeds in arms.values() for one in seeds.values()]
    start = mean_over_seeds(success_before(arms), generator(0, "bench.learning"))
    ratios = [f"{what} / {baseline or 'baseline'}" for what in (f"tokens to {LEVEL}", "tokens to its final success")]
    heading = ["arm", "seeds", *(title for _, title, _, _ in COLUMNS), "pass@k, k = samples", *ratios]
    lines = [
        f"## {', '.join(setting)}",
        "",
        f"Root success before training {text_of(start, digits=4)}, budget {results[0]['budget']:,} generated tokens, commits "
        f"{', '.join(sorted({one['commit'] for one in results}))}. ![curves]({plot})",
        "",
        f"| {' | '.join(heading)} |",
        f"|{'---|' * len(heading)}",
    ]
    for arm in sorted((arm for arm in ARMS if arm in arms), key=with_solutions):
        found = measures([arms[arm][seed] for seed in sorted(arms[arm])])
        cells = [f"{arm} (given solutions)" if with_solutions(arm) else arm, str(len(arms[arm]))]
        cells += [text_of(found[name], scale, digits) for name, _, scale, digits in COLUMNS]
        cells += [text_of(value) for name, value in found.items() if name.startswith("pass@")]
        cells += [
            text_of(ratio_to(arms, arm, baseline, level)) if baseline not in (None, arm) else "-"
            for level in (LEVEL, None)
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def goals(setting: Setting, arms: Arms) -> list[Check]:
    """The checks of one setting. A goal is judged from `ENOUGH` seeds on. A ratio is 0 where the other arm never gets there."""
    baseline = best_baseline(arms)
    if OURS not in arms or baseline is None:
        return []
    checks: list[Check] = []
    goal, upper = (FREE, FREE) if setting[1] == HARDNESSES[0] else (HALF, 1.0)
    others = [name for name in OTHERS if name in arms]
    for other, level in [(baseline, None), *((name, LEVEL) for name in (baseline, *others))]:
        ratio = ratio_to(arms, OURS, other, level)
        if ratio is None or ratio.seeds < ENOUGH or math.isnan(ratio.value):  # NaN: neither arm gets there
            continue
        what = f"to {LEVEL} of {OURS} / {other}" if level else f"of {OURS} to the final success of {other} / its tokens"
        name = f"{', '.join(setting)}: tokens {what}"
        if other == baseline:
            checks.append(check(name, ratio.value, "ratio", "<=", goal, baseline=1.0))
        checks.append(check(f"{name}, upper end of its interval", ratio.high, "ratio", "<=", upper, baseline=1.0))
    if min(len(arms.get("value", {})), len(arms[OURS])) >= ENOUGH:
        wrong = [measures(list(arms[arm].values()))["erroneous"].value for arm in (OURS, "value")]
        name = f"{', '.join(setting)}: erroneous replayed states of {OURS} / value"
        checks.append(check(name, wrong[0] / wrong[1], "ratio", "<=", HALF, baseline=1.0))
    return checks


COSTS = {
    "generated": ("thousand generated tokens", 1000.0),
    "trained": ("thousand trained tokens", 1000.0),
    "seconds": ("seconds", 1.0),
}
"""What a run costs: axis of a plot and its unit."""


def panels_of(setting: Setting, arms: Arms) -> list[Panel]:
    """One setting against each cost."""
    return [(arms, cost, "" if at else ", ".join(setting)) for at, cost in enumerate(COSTS)]


def overview(found: Mapping[Setting, Arms]) -> list[Panel]:
    """Every setting against generated tokens; only the arms `SHOWN` that have `ENOUGH` seeds."""
    panels: list[Panel] = []
    for setting, arms in found.items():
        chosen = {arm: seeds for arm, seeds in arms.items() if len(seeds) >= ENOUGH and arm in SHOWN}
        if chosen:
            start = np.mean(success_before(chosen))
            title = f"{', '.join(setting)} (root success {start:.1g} at the start)"
            panels.append((chosen, "generated", title))
    return panels


def draw(panels: Sequence[Panel], path: Path) -> None:
    """The mean curves with their intervals over seeds, panels side by side; no file without a panel."""
    from matplotlib.figure import Figure

    if not panels:
        return
    figure = Figure(figsize=(5.0 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for panel, (arms, cost, title) in zip(axes, panels, strict=True):
        _curves(panel, arms, cost)
        if title:
            panel.set(title=title)
            panel.legend(fontsize=7, title="arm (seeds)", title_fontsize=7)
    axes[0].set(ylabel="held-out success")
    figure.savefig(path, dpi=80)


def _curves(panel: Any, arms: Arms, cost: str) -> None:
    title, unit = COSTS[cost]
    for arm in (one for one in ARMS if one in arms):
        curves = [curve(one, cost) for one in arms[arm].values()]
        grid = np.linspace(0.0, max(one.tokens[-1] for one in curves), 61)
        each = np.array([on_grid(one, grid) for one in curves])
        picks = generator(0, "plot", arm).integers(0, len(each), (500, len(each)))
        low, high = np.quantile(each[picks].mean(axis=1), [0.025, 0.975], axis=0)
        usual = arm.removesuffix("_small")
        style = "--" if with_solutions(arm) else "-" if arm == usual else ":"
        color = f"C{[one for one in ARMS if not one.endswith('_small')].index(usual) % 10}"  # the same in all panels
        panel.plot(grid / unit, each.mean(axis=0), style, color=color, label=f"{arm} ({len(each)})")
        panel.fill_between(grid / unit, low, high, color=color, alpha=0.12, linewidth=0)
    panel.set(xlabel=title, ylim=(0, 1))


def write_page(folder: Path, *, quick: bool) -> None:
    """Write the page, its JSON and its plots from the result files in `folder`."""
    found = dict(sorted(read_results(folder).items(), key=lambda item: (item[0][0], HARDNESSES.index(item[0][1]))))
    lines, checks, numbers = [HEAD], [], {}
    for setting, arms in found.items():
        plot = folder / f"{'-'.join(setting)}.png"
        draw(panels_of(setting, arms), plot)
        lines += section(setting, arms, f"{folder.name}/{plot.name}")
        checks += goals(setting, arms)
        numbers[", ".join(setting)] = {
            arm: {name: plain(asdict(one)) for name, one in measures([seeds[at] for at in sorted(seeds)]).items()}
            for arm, seeds in arms.items()
        }
    draw(overview(found), folder.parent / "learning.png")
    settings = {
        "runs": sum(len(seeds) for arms in found.values() for seeds in arms.values()),
        "tasks": ", ".join(sorted({task for task, _ in found})),
    }
    write("learning", checks, settings, quick=quick, page="\n".join(lines), measures=numbers)


HEAD = f"""# learning

Does replay learn more than PPO? Every row is one arm over its seeds: the value and, in brackets, its 95 % bootstrap interval over
seeds. Success is the share of right responses to held-out problems, sampled from the root at temperature 1. An interval of fewer
than {ENOUGH} seeds says little, and one seed has none: it says nothing about which arm is better. [bench/README.md](../README.md) explains the
columns and how to rerun or continue the matrix.
"""
