"""The tables and plots of the page, from the tables of results. Invariant: no mean without its interval (but of equal
values) and the number of seed indices, and no decision before all planned runs are there."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.real.assay_page import assay_section
from bench.real.plan import ARMS, ASSAYS, PAIRS, PARTS
from bench.report import Check, check, grid, write
from bench.runs import Arms, Result, arms_of, final
from bench.statistics import Difference, difference, with_interval
from core.run_directory import read_jsonl

IDLE = 3.0  # load below which a machine has nothing else to do than two runs
SMOOTHED = 5  # iterations in the mean that the plot shows
FLOOR = 0.06  # where all runs end below, nothing has been learnt that arms could differ in
WORTH = 0.02  # a difference in held-out success that is worth a default
Decision = Literal["a default", "off by default", "undecided"]


def over_run(result: Result, name: str, share: float = 0.0) -> float:
    """Mean of a column over the iterations after this share of them, of those that have a value; NaN if none has, or
    the result is older than the column."""
    column = result["iterations"].get(name, [])
    known = [value for value in column[int(share * len(column)) :] if value is not None]
    return sum(known) / len(known) if known else float("nan")


def at_end(result: Result, name: str) -> float:
    """The last value of a column; NaN if it was not measured."""
    column = result["iterations"].get(name, [None])
    return float("nan") if column[-1] is None else float(column[-1])


def seconds(result: Result) -> float:
    """Seconds of training per thousand generated tokens, without evaluation and start."""
    return 1000 * float(sum(result["iterations"]["seconds"])) / float(result["generated"])


def root(result: Result) -> float:
    """Mean success from the root in training."""
    return over_run(result, "root_success")


Measure = tuple[str, Callable[[Result], float], float, int]  # heading, value, factor, digits
MEASURES: Sequence[Measure] = (
    ("pass@1 before, %", lambda one: one["evaluations"][0]["pass@1"], 100, 1),
    ("at the end, %", final, 100, 1),
    ("pass@4 at the end, %", lambda one: one["evaluations"][-1]["pass@4"], 100, 1),
    ("root success over the run, %", root, 100, 1),
    ("training problems solved from the root, %", lambda one: at_end(one, "covered_from_root"), 100, 0),
    ("at all, %", lambda one: at_end(one, "covered"), 100, 0),
    ("replayed starts, %", lambda one: over_run(one, "replay_share"), 100, 0),
    ("replayed success, %", lambda one: over_run(one, "replay_success"), 100, 0),
    ("replayed 4 p (1 - p)", lambda one: over_run(one, "replayed_learnability"), 1, 2),
    ("imitated", lambda one: over_run(one, "imitated"), 1, 1),
    ("optimizer steps", lambda one: float(sum(one["iterations"]["policy_steps"])), 1, 0),
    ("trained tokens, k", lambda one: float(sum(one["iterations"]["trained_tokens"])), 1e-3, 0),
)


def by_level(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Held-out pass@1 of all problems and, where there is more than one level of difficulty, of each."""
    levels = evaluation.get("levels", {})
    return {"all": evaluation["pass@1"]} | (levels if len(levels) > 1 else {})


def level_measures(arms: Arms) -> list[Measure]:
    """pass@1 at the end for each level of difficulty, where there is more than one."""
    results = [one for seeds in arms.values() for one in seeds.values()]
    names = sorted({name for one in results for name in by_level(one["evaluations"][-1])} - {"all"})

    def _measure(name: str) -> Measure:
        return f"{name}, %", lambda one: by_level(one["evaluations"][-1]).get(name, float("nan")), 100, 1

    return [_measure(name) for name in names]


def set_measures(arms: Arms) -> list[Measure]:
    """Success of greedy responses at the end on each further evaluation set."""
    results = [one for seeds in arms.values() for one in seeds.values()]
    names = sorted({name for one in results for name in one["evaluations"][-1].get("sets", {})})

    def _measure(name: str) -> Measure:
        missing = {"greedy": float("nan")}
        return (
            f"{name} greedy, %",
            lambda one: one["evaluations"][-1].get("sets", {}).get(name, missing)["greedy"],
            100,
            1,
        )

    return [_measure(name) for name in names]


def cell(values: Sequence[float], scale: float, digits: int) -> str:
    """A mean over the seed indices that have a value, with its interval; how many, if not all do."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "-"
    text = with_interval(difference(known), scale, digits)
    return f"{text}, {len(known)} seeds" if 1 < len(known) < len(values) else text


def arm_table(arms: Arms, measures: Sequence[Measure]) -> list[str]:
    """A row of measures for each arm: means over seed indices with t intervals."""
    rows = []
    for arm, seeds in arms.items():
        results = [seeds[seed] for seed in sorted(seeds)]
        cells = [cell([of(one) for one in results], scale, digits) for _, of, scale, digits in measures]
        rows.append([f"{arm}{', diverged' * any(one['diverged'] for one in results)}", str(len(results)), *cells])
    return grid(["arm", "seeds", *(title for title, *_ in measures)], rows)


def speed_table(arms: Arms) -> list[str]:
    """Seconds of each arm per machine: those of two machines are never compared."""
    found: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for arm, seeds in arms.items():
        for result in seeds.values():
            threads = f", {result['threads']} threads" if result.get("threads", 1) > 1 else ""
            label = result["machine"] + threads + ", loaded" * (max(result["load"]) >= IDLE)
            found[label][arm].append(result)
    rows = [
        [machine, arm, with_interval(difference([seconds(one) for one in results]), 1.0, 1), str(len(results))]
        for machine, by_arm in found.items()
        for arm, results in by_arm.items()
    ]
    return grid(["machine", "arm", "seconds per 1,000 generated tokens, evaluation left out", "runs"], rows)


def comparisons(part: str, arms: Arms) -> tuple[list[str], list[Check]]:
    """Paired differences in final pass@1 and in success from the root over the run; a decision for the first two
    pairs."""
    rows, checks = [], []
    for first, second in PAIRS:
        seeds = sorted(arms.get(first, {}).keys() & arms.get(second, {}).keys())
        if not seeds:
            continue
        found, area = (
            difference(*([of(arms[arm][seed]) for seed in seeds] for arm in (first, second))) for of in (final, root)
        )
        numbers = with_interval(found, 100), f"{found.p:.3f}", with_interval(area, 100), str(found.seeds)
        row = [f"{first} - {second}", *numbers, "-"]
        if (first, second) in PAIRS[:2]:
            ends = [final(arms[arm][seed]) for arm in (first, second) for seed in seeds]
            complete = planned(part) <= set(seeds) or max(ends) < FLOOR  # at the floor a part ends
            row[-1] = decision(found, ends) if complete else "runs are missing"
        rows.append(row)
        checks.append(check(f"{part}: {first} - {second}, pass@1 at the end", 100 * found.mean, "points"))
    heading = ["pair", "points of pass@1 (95 % t interval)", "sign-flip p", "points over the run", "seeds", "decision"]
    return (grid(heading, rows) if rows else []), checks


def planned(part: str) -> set[int]:
    """The seed indices of a part."""
    return set(range(1, PARTS[part].seeds + 1))


def decision(found: Difference, ends: Sequence[float]) -> str:
    """What the rule says of a pair whose runs end at these successes."""
    if max(ends) < FLOOR:
        return f"none: all runs end below {100 * FLOOR:.0f} %"
    return decide(found) + ", below 0" * (found.high < 0)


def decide(found: Difference) -> Decision:
    """The rule of P1."""
    if found.low > 0 and found.mean >= WORTH:
        return "a default"
    return "off by default" if found.low > -WORTH and found.high < WORTH else "undecided"


def warnings(arms: Arms) -> list[str]:
    """What should not be mixed: commits, rates within an arm, machines of a pair."""
    results = [one for seeds in arms.values() for one in seeds.values()]
    rates = [arm for arm, seeds in arms.items() if len({one["rate"] for one in seeds.values()}) > 1]
    lines = [f"Commits: {', '.join(sorted({one['commit'] for one in results}))}."]
    lines += [f"**The seed indices of {', '.join(rates)} have different learning rates.**"] if rates else []
    pairs = [
        f"{first} - {second} ({', '.join(map(str, apart))})"
        for first, second in PAIRS
        if (apart := _on_two_machines(arms.get(first, {}), arms.get(second, {})))
    ]
    lines += [f"Pairs whose runs are of two machines, with the seed indices: {', '.join(pairs)}."] if pairs else []
    return [*lines, ""]


def _on_two_machines(one: Mapping[int, Result], other: Mapping[int, Result]) -> list[int]:
    """The seed indices at which two arms ran on different machines."""
    return [seed for seed in sorted(one.keys() & other.keys()) if one[seed]["machine"] != other[seed]["machine"]]


def _smoothed(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Thousands of generated tokens, and the success from the root: means of `SMOOTHED` iterations that end there."""
    tokens = np.cumsum(result["iterations"]["generated_tokens"]) / 1000
    success = np.array(result["iterations"]["root_success"], np.float64)
    width = min(SMOOTHED, len(success))
    return tokens[width - 1 :], np.convolve(success, np.ones(width) / width, "valid")


def draw(arms: Arms, path: Path) -> None:
    """Two panels. Left: held-out pass@1 at the end, a row for each arm: a dot for each seed index, a bar for their
    mean, a dotted line for the success before training. Right: success from the root in training against generated
    tokens, each run thin and the mean over seed indices thick."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, max(3.0, 0.8 + 0.26 * len(arms))), layout="constrained")
    left, right = figure.subplots(1, 2)
    before = [one["evaluations"][0]["pass@1"] for seeds in arms.values() for one in seeds.values()]
    left.axvline(float(np.mean(before)), color="grey", linestyle=":")
    for at, seeds in enumerate(arms.values()):
        colour, ends = colormaps["tab20"](at % 20), [final(one) for one in seeds.values()]
        left.barh(at, np.mean(ends), 0.7, color=colour, alpha=0.5)
        left.plot(ends, [at] * len(ends), "o", color=colour, markeredgecolor="black", markeredgewidth=0.3, markersize=4)
        curves = [_smoothed(one) for one in seeds.values()]
        for tokens, success in curves:
            right.plot(tokens, success, color=colour, alpha=0.2, linewidth=0.7)
        points = np.linspace(max(tokens[0] for tokens, _ in curves), min(tokens[-1] for tokens, _ in curves), 101)
        right.plot(points, np.mean([np.interp(points, *curve) for curve in curves], axis=0), color=colour)
    left.set(xlabel="held-out pass@1 at the end (dotted: before)", xlim=(0, None))
    left.set_yticks(range(len(arms)), [f"{arm} ({len(seeds)})" for arm, seeds in arms.items()])
    left.invert_yaxis()
    right.set(xlabel="thousand generated tokens", ylabel="success from the root in training", ylim=(0, None))
    figure.savefig(path, dpi=80)


def section(part: str, arms: Arms, folder: Path) -> tuple[list[str], list[Check]]:
    """A part whose arms are compared at equal generated tokens."""
    plot = folder / f"{part}.png"
    draw(arms, plot)
    table, checks = comparisons(part, arms)
    lines = [f"![success]({folder.name}/{plot.name})", "", *warnings(arms), *table]
    measures = [*MEASURES, *level_measures(arms), *set_measures(arms)]
    return [*lines, *arm_table(arms, measures), *speed_table(arms)], checks


def write_page(folder: Path, *, quick: bool) -> None:
    """Write the page, its JSON and its plots from the tables in `folder`. `quick`: of trials."""
    lines, checks, runs = [HEAD], list[Check](), 0
    for part in PARTS:
        rows = read_jsonl(folder / f"{part}.jsonl")
        if not rows:
            continue
        lines, runs = [*lines, f"## {part}", ""], runs + len(rows)
        if part in ASSAYS:
            found = [assay_section(task, rows) for task, rows in by_task(rows).items()]
        else:
            found = [section(part, arms_of(rows, ARMS), folder)]
        for more, own in found:
            lines, checks = [*lines, *more], [*checks, *own]
    write("real", checks, {"runs": runs}, quick=quick, page="\n".join(lines))


def by_task(rows: Sequence[Result]) -> Mapping[str, list[Result]]:
    """The assays of each task, whose name stands as the arm."""
    found: dict[str, list[Result]] = defaultdict(list)
    for row in rows:
        found[row["run"]["arm"]].append(row)
    return found


HEAD = """# real

Does it help a pretrained model? The question, the arms and the rules are in [the protocol](../real/PROTOCOL.md), which
was written before the runs. Numbers are means over seed indices with 95 % t intervals; those of the assay have
bootstrap intervals over problems. The tables of results, a line for each run, are in [real](real).
"""
