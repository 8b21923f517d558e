"""Writes bench/results/real.md, its JSON and its plots, a section for each part. Invariant: no decision before all
planned runs of its part are there."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.learning.measures import Curve, area, plain, reached_between
from bench.learning.page import grid
from bench.real.page import (
    MEASURES,
    MORE_MEASURES,
    Arms,
    Measure,
    arm_table,
    arms_of,
    assay_section,
    comparisons,
    draw,
    final,
    level_measures,
    planned,
    seconds,
    speed_table,
    warnings,
    with_interval,
)
from bench.real.plan import PAIRS, PARTS, Result
from bench.real.statistics import WORTH, difference
from bench.report import Check, check, write
from core.run_directory import read_jsonl

Section = tuple[list[str], list[Check]]
Parts = Mapping[str, Arms]
HALFWAY = 0.5
COSTS = {"environment_steps": ("thousand environment steps", 1e-3), "trained_seconds": ("seconds of training", 1.0)}
"""What a success may cost: an entry of every evaluation, its name in the plot, and a factor."""

UNCHANGED = ("neither", "imitation")  # arms that restart nothing: snapshots of the world change no number


def of_assay(part: str, found: Parts, folder: Path) -> Section:  # noqa: ARG001  one signature for all parts
    """The tasks of P0."""
    lines, checks = list[str](), list[Check]()
    for task, seeds in found[part].items():
        section, own = assay_section(task, [seeds[seed] for seed in sorted(seeds)])
        lines, checks = [*lines, *section], [*checks, *own]
    return lines, checks


def of_tokens(part: str, found: Parts, folder: Path) -> Section:
    """A part whose arms are compared at equal generated tokens."""
    arms, plot = found[part], folder / f"{part}.png"
    draw(arms, plot)
    others = found["sums"] if part == "epochs" else {}
    table, checks = comparisons(part, arms, others)
    lines = [f"![success]({folder.name}/{plot.name})", "", *warnings(arms, others), *table]
    lines += arm_table(arms, [*MEASURES, *level_measures(arms)])
    lines += ["Means over the iterations of a run:", "", *arm_table(arms, MORE_MEASURES), *speed_table(arms)]
    return lines, checks


def share(found: Sequence[float]) -> float:
    """Successes of samples."""
    return found[0] / found[1]


OF_HINTS: Sequence[Measure] = (
    ("pass@1 before, %", lambda one: one["evaluations"][0]["pass@1"], 100, 1),
    ("half-way (loss: after 2 passes), %", lambda one: one["evaluations"][1]["pass@1"], 100, 1),
    ("at the end, %", final, 100, 1),
    ("its training problems, %", lambda one: share(one["solved"]), 100, 1),
    ("trained tokens, k", lambda one: float(sum(one["iterations"]["trained_tokens"])), 1e-3, 0),
    ("minutes of training", lambda one: float(sum(one["iterations"]["total_seconds"])), 1 / 60, 0),
)


def best_after_loss(result: Result) -> float:
    """pass@1 of the supervised arm: after few passes or at equal tokens, whichever is higher."""
    return max(float(row["pass@1"]) for row in result["evaluations"][1:])


def of_hints(part: str, found: Parts, folder: Path) -> Section:  # noqa: ARG001
    """P2, and its rule."""
    arms = found[part]
    lines, checks = [*warnings(arms), *arm_table(arms, OF_HINTS)], list[Check]()
    seeds = sorted(arms.get("prefix", {}).keys() & arms.get("loss", {}).keys())
    if not seeds:
        return lines, checks
    gains = [final(arms["prefix"][seed]) - best_after_loss(arms["loss"][seed]) for seed in seeds]
    each = ", ".join(f"{100 * gain:.1f}" for gain in gains)
    told = "not recommended"  # the rule asks for every seed index
    if min(gains) >= WORTH:
        told = "recommended" if planned(part) <= set(seeds) else "undecided: runs are missing"
    lines += [f"`prefix` less the better of the two of `loss`, points by seed index: {each}.", ""]
    lines += [f"Replay of hints: {told}.", ""]
    return lines, [check("hints: least gain of prefix over loss, pass@1", 100 * min(gains), "points")]


def curve_by(result: Result, cost: str) -> Curve:
    """Held-out success against what it cost."""
    rows = result["evaluations"]
    return Curve([float(row[cost]) for row in rows], [float(row["pass@1"]) for row in rows])


def longest(arms: Arms, cost: str) -> float:
    """The cost up to which areas are taken: the least that any run has spent, so that every curve covers it."""
    return min(curve_by(one, cost).tokens[-1] for seeds in arms.values() for one in seeds.values())


def reached(results: Sequence[Result], cost: str, factor: float) -> str:
    """Between which evaluations half of the problems are first solved, medians over seed indices, as text."""
    ends = [reached_between(curve_by(one, cost), HALFWAY) for one in results]
    after, by = (sorted(column)[(len(ends) - 1) // 2] for column in zip(*ends, strict=True))
    return "never" if math.isinf(by) else f"{factor * after:.0f} to {factor * by:.0f}"


def of_costs(part: str, found: Parts, folder: Path) -> Section:
    """A part whose arms are compared by environment steps and by seconds."""
    same = {arm: seeds for arm, seeds in found["game"].items() if arm in UNCHANGED} if part == "saved" else {}
    arms, plot = same | dict(found[part]), folder / f"{part}.png"
    draw_costs(arms, plot)
    areas = {cost: _area_to(cost, longest(arms, cost)) for cost in COSTS}
    rows, checks = [], list[Check]()
    for arm, seeds in arms.items():
        results = [seeds[seed] for seed in sorted(seeds)]
        cells = [f"{arm}{', diverged' * any(one['diverged'] for one in results)}", str(len(results))]
        cells += [_cell([of(one) for one in results], 1, 3) for of in areas.values()]
        cells += [_cell([final(one) for one in results], 100, 1)]
        cells += [reached(results, cost, factor) for cost, (_, factor) in COSTS.items()]
        cells += [_cell([_repeated(one) for one in results], 100, 0), _cell([seconds(one) for one in results], 1, 1)]
        rows.append(cells)
    heading = ["arm", "seeds", "area by steps", "area by seconds", "at the end, %", f"to {HALFWAY}, k steps"]
    heading += [f"to {HALFWAY}, seconds", "repeated steps, %", "seconds per 1,000 tokens"]
    lines = [f"![curves]({folder.name}/{plot.name})", "", *warnings(arms), *grid(heading, rows)]
    lines += [] if part == "slow" else ["Seconds were taken beside other work. They are not compared.", ""]
    lines += ["The arms that restart nothing are those of `game`.", ""] if same else []
    table = []
    for first, second in PAIRS:
        both = sorted(arms.get(first, {}).keys() & arms.get(second, {}).keys())
        if not both:
            continue
        gains = [difference(*([of(arms[arm][at]) for at in both] for arm in (first, second))) for of in areas.values()]
        table.append([f"{first} - {second}", *(f"{with_interval(one, 1, 3)}, p {one.p:.3f}" for one in gains)])
        checks.append(check(f"{part}: {first} - {second}, area by steps", gains[0].mean, "share"))
    return [*lines, *(grid(["pair", "area by steps", "area by seconds"], table) if table else [])], checks


def _cell(values: Sequence[float], scale: float, digits: int) -> str:
    return with_interval(difference(values, [0.0] * len(values)), scale, digits)


def _area_to(cost: str, budget: float) -> Callable[[Result], float]:
    return lambda one: area(curve_by(one, cost), budget)


def _repeated(result: Result) -> float:
    columns = result["iterations"]
    return float(sum(columns["repeated_steps"]) / sum(columns["environment_steps"]))


def draw_costs(arms: Arms, path: Path) -> None:
    """Held-out success against environment steps and against seconds, each run thin and the mean over seeds thick."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for panel, (cost, (title, factor)) in zip(figure.subplots(1, 2), COSTS.items(), strict=True):
        points = np.linspace(0.0, longest(arms, cost), 101)
        for at, (arm, seeds) in enumerate(arms.items()):
            curves = [curve_by(one, cost) for one in seeds.values()]
            for one in curves:
                panel.plot(factor * np.array(one.tokens), one.success, color=f"C{at}", alpha=0.25, linewidth=0.8)
            mean = np.mean([np.interp(points, one.tokens, one.success) for one in curves], axis=0)
            panel.plot(factor * points, mean, color=f"C{at}", label=f"{arm} ({len(seeds)})")
        panel.set(xlabel=title, ylabel="held-out pass@1", ylim=(0, None))
        panel.legend(title="arm (seed indices)", fontsize=8)
    figure.savefig(path, dpi=80)


SECTIONS: Mapping[str, Callable[[str, Parts, Path], Section]] = {
    "assay": of_assay,
    "hints": of_hints,
    "game": of_costs,
    "slow": of_costs,
    "saved": of_costs,
}
"""Parts that are not compared at equal generated tokens."""


def write_page(folder: Path, *, quick: bool) -> None:
    """Write the page, its JSON and its plots from the tables in `folder`. `quick`: of trials."""
    found = {part: arms_of(read_jsonl(folder / f"{part}.jsonl")) for part in PARTS}
    tuning, lines, checks = read_jsonl(folder / "tuning.jsonl"), [HEAD], list[Check]()
    for part, arms in found.items():
        if arms:
            section, own = SECTIONS.get(part, of_tokens)(part, found, folder)
            lines, checks = [*lines, f"## {part}", "", *section], [*checks, *own]
    counts = defaultdict[str, int](int)
    for row in tuning:
        counts[row["run"]["arm"]] += 1
    lines += [f"Tuning runs: {', '.join(f'{arm} {count}' for arm, count in counts.items()) or 'none'}.", ""]
    settings = {"runs": sum(len(seeds) for arms in found.values() for seeds in arms.values())}
    write("real", checks, settings, quick=quick, page="\n".join(lines), measures=plain({"tuning runs": counts}))


HEAD = """# real

Does it help a pretrained model? The question, the arms and the rules are in [the protocol](../real/PROTOCOL.md), which
was written before the runs. Numbers are means over seed indices with 95 % t intervals; those of the assay have
bootstrap intervals over problems. The tables of results, a line for each run, are in [real](real). In `sums` and
`epochs` the shares of erroneous texts and of lucky successes in training are too high
([Deviations](../real/PROTOCOL.md#deviations)).
"""
