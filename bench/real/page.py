"""The tables and plots of the page, from the tables of results. Invariant: no mean without its interval (but of equal
values) and the number of seed indices, and no decision before all planned runs are there."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bench.learning.page import grid, text_of
from bench.learning.statistics import mean_over_seeds
from bench.real.assay import CONTINUATIONS, DEPTHS
from bench.real.plan import ARMS, PAIRS, PARTS, Result
from bench.real.statistics import Difference, decide, difference, gain, mean_interval
from bench.report import Check, check
from core.seeds import generator

Arms = Mapping[str, Mapping[int, Result]]  # arm -> seed index -> result
NEVER = "no success from the root"
IDLE = 3.0  # load below which a machine has nothing else to do than two runs
DECIDING = ("main", "sums")  # parts whose page prints decisions
SMOOTHED = 5  # iterations in the mean that the plot shows
SAME = 1e-9  # an interval of this width is that of equal values
FLOOR = 0.06  # where all runs end below, nothing has been learnt that arms could differ in
KINDS = ("own", "random", "best", "canonical")  # of restarts
TITLES = {
    "own": "own success",
    "random": "failure, at random",
    "best": "failure, by Monte-Carlo value",
    "canonical": "canonical solution",
}


def arms_of(rows: Sequence[Result]) -> Arms:
    """The results of a part by arm and seed index."""
    found: dict[str, dict[int, Result]] = defaultdict(dict)
    for row in rows:
        found[row["run"]["arm"]][row["run"]["seed"]] = row
    return {arm: found[arm] for arm in ARMS if arm in found}


def final(result: Result) -> float:
    """Held-out pass@1 at the end."""
    return float(result["evaluations"][-1]["pass@1"])


def half_way(result: Result) -> float:
    """Held-out pass@1 half-way; NaN for a run that had one iteration or diverged before."""
    found = result["evaluations"]
    return float(found[1]["pass@1"]) if len(found) == 3 else float("nan")


def over_run(result: Result, name: str, share: float = 0.0) -> float:
    """Mean of a column over the iterations after this share of them, of those that have a value; NaN if none has."""
    column = result["iterations"][name]
    known = [value for value in column[int(share * len(column)) :] if value is not None]
    return sum(known) / len(known) if known else float("nan")


def lucky(result: Result) -> float:
    """phi at the end."""
    wrong, told, _ = result["evaluations"][-1]["lucky"]
    return wrong / told if told else float("nan")


def seconds(result: Result) -> float:
    """Seconds of training per thousand generated tokens, without evaluation and start."""
    return 1000 * float(sum(result["iterations"]["total_seconds"])) / float(result["generated"])


Measure = tuple[str, Callable[[Result], float], float, int]  # heading, value, factor, digits
MEASURES: Sequence[Measure] = (
    ("pass@1 before, %", lambda one: one["evaluations"][0]["pass@1"], 100, 1),
    ("half-way, %", half_way, 100, 1),
    ("at the end, %", final, 100, 1),
    ("pass@k at the end, %", lambda one: list(passes(one).values())[-1], 100, 1),
    ("phi, %", lucky, 100, 1),
    ("entropy, last tenth", lambda one: over_run(one, "entropy", 0.9), 1, 2),
)
MORE_MEASURES: Sequence[Measure] = (
    ("replayed starts, %", lambda one: over_run(one, "replay_share"), 100, 0),
    ("replayed success, %", lambda one: over_run(one, "replay_success"), 100, 0),
    ("learnability of these", lambda one: over_run(one, "replayed_learnability"), 1, 2),
    ("imitated", lambda one: over_run(one, "imitated"), 1, 1),
    ("erroneous: of rollouts' states, %", lambda one: over_run(one, "erroneous_states"), 100, 0),
    ("of replayed, %", lambda one: over_run(one, "erroneous_share"), 100, 0),
    ("of imitated, %", lambda one: over_run(one, "erroneous_imitated"), 100, 0),
    ("lucky successes, %", lambda one: over_run(one, "lucky_share"), 100, 0),
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


def passes(result: Result) -> dict[str, float]:
    """pass@k at the end, k rising."""
    last = result["evaluations"][-1]
    return {f"pass@{k}": last[f"pass@{k}"] for k in (1, 2, 4, 8, 16) if f"pass@{k}" in last}


def with_interval(found: Difference, scale: float = 1.0, digits: int = 1) -> str:
    """A mean with its t interval as text, which is left out if all values are the same; '-' for none."""
    if np.isnan(found.mean):
        return "-"
    mean, low, high = (f"{scale * value:.{digits}f}" for value in (found.mean, found.low, found.high))
    if found.seeds == 1:
        return f"{mean} (one seed)"
    return mean if found.high - found.low < SAME else f"{mean} ({low} to {high})"


def arm_table(arms: Arms, measures: Sequence[Measure]) -> list[str]:
    """A row of measures for each arm: means over seed indices with t intervals."""
    rows = []
    for arm, seeds in arms.items():
        results = [seeds[seed] for seed in sorted(seeds)]
        cells = [
            with_interval(mean_interval([of(one) for one in results]), scale, digits)
            for _, of, scale, digits in measures
        ]
        rows.append([f"{arm}{', diverged' * any(one['diverged'] for one in results)}", str(len(results)), *cells])
    return grid(["arm", "seeds", *(title for title, *_ in measures)], rows)


def speed_table(arms: Arms) -> list[str]:
    """Seconds of each arm per machine: those of two machines are never compared."""
    found: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for arm, seeds in arms.items():
        for result in seeds.values():
            label = result["machine"] + ", loaded" * (max(result["load"]) >= IDLE)
            found[label][arm].append(result)
    rows = [
        [machine, arm, with_interval(mean_interval([seconds(one) for one in results]), 1.0, 1), str(len(results))]
        for machine, by_arm in found.items()
        for arm, results in by_arm.items()
    ]
    return grid(["machine", "arm", "seconds per 1,000 generated tokens, evaluation left out", "runs"], rows)


def comparisons(part: str, arms: Arms, others: Arms) -> tuple[list[str], list[Check]]:
    """Paired differences in final pass@1. `others`: arms of P1, which P1b compares with."""
    known, rows, checks = {**others, **arms}, [], []
    for first, second in PAIRS:
        if first not in known or second not in known or not {first, second} & arms.keys():
            continue
        seeds = sorted(known[first].keys() & known[second].keys())
        if not seeds:
            continue
        found = difference(*([final(known[arm][seed]) for seed in seeds] for arm in (first, second)))
        row = [f"{first} - {second}", with_interval(found, 100), f"{found.p:.3f}", str(found.seeds)]
        if part in DECIDING and (first, second) in PAIRS[:2]:
            ends = [final(known[arm][seed]) for arm in (first, second) for seed in seeds]
            complete = planned(part) <= set(seeds) or max(ends) < FLOOR  # at the floor a part ends
            row.append(decision(found, ends) if complete else "runs are missing")
        rows.append([*row, "-"][:5])
        checks.append(check(f"{part}: {first} - {second}, pass@1 at the end", 100 * found.mean, "points"))
    heading = ["pair", "points of pass@1 (95 % t interval)", "sign-flip p", "seeds", "decision"]
    return (grid(heading, rows) if rows else []), checks


def planned(part: str) -> set[int]:
    """The seed indices of a part."""
    return set(range(1, PARTS[part].seeds + 1))


def decision(found: Difference, ends: Sequence[float]) -> str:
    """What the rule says of a pair whose runs end at these successes."""
    if max(ends) < FLOOR:
        return f"none: all runs end below {100 * FLOOR:.0f} %"
    return decide(found) + ", below 0" * (found.high < 0)


def warnings(arms: Arms, others: Arms = MappingProxyType({})) -> list[str]:
    """What should not be mixed: warm starts within a seed index, commits, rates within an arm, machines of a pair.
    `others`: arms of another part, with which these are compared."""
    results = [one for seeds in arms.values() for one in seeds.values()]
    models: dict[int, set[str]] = defaultdict(set)
    for one in results:
        models[one["run"]["seed"]].add(one["model"])
    mixed = [str(seed) for seed, found in models.items() if len(found) > 1]
    rates = [arm for arm, seeds in arms.items() if len({one["rate"] for one in seeds.values()}) > 1]
    lines = [f"Commits: {', '.join(sorted({one['commit'] for one in results}))}."]
    lines += [f"**Arms of seed index {', '.join(mixed)} have different warm starts.**"] if mixed else []
    lines += [f"**The seed indices of {', '.join(rates)} have different learning rates.**"] if rates else []
    known = {**others, **arms}
    pairs = [
        f"{first} - {second} ({', '.join(map(str, apart))})"
        for first, second in PAIRS
        if {first, second} & arms.keys()
        if (apart := _on_two_machines(known.get(first, {}), known.get(second, {})))
    ]
    lines += [f"Pairs whose runs are of two machines, with the seed indices: {', '.join(pairs)}."] if pairs else []
    return [*lines, ""]


def _on_two_machines(one: Mapping[int, Result], other: Mapping[int, Result]) -> list[int]:
    """The seed indices at which two arms ran on different machines."""
    return [seed for seed in sorted(one.keys() & other.keys()) if one[seed]["machine"] != other[seed]["machine"]]


def assay_section(task: str, results: Sequence[Result]) -> tuple[list[str], list[Check]]:
    """Roots, restarts and choices of one task, pooled over seed indices."""
    won = np.array([count for one in results for count in one["roots"]["success"]])
    samples = results[0]["samples"]
    wrong, told, correct = np.sum([one["roots"]["lucky"] for one in results], axis=0).tolist()
    rng = generator(0, "bench.real", task)
    first = mean_over_seeds((won / samples).tolist(), rng)
    rows = [row for one in results for row in one["chosen"]]
    scales = ", ".join(str(one["scale"]) for one in results)
    phi = f"{100 * wrong / told:.0f} %" if told else "none"
    lines = [
        f"### {task} ({len(results)} seed {'index' if len(results) == 1 else 'indices'}; scale {scales})",
        "",
        f"{len(won)} problems, {samples} samples each: success {text_of(first, 100, 1)} %, "
        f"{100 * float((won > 0).mean()):.0f} % have a success (pass@{samples}), "
        f"**{100 * float((won == 0).mean()):.0f} % have 0 of {samples}**. "
        f"phi: {phi} of the {told} successes that can be checked ({correct} in all) state something wrong.",
        "",
        "Gain M of a restart per token, with its interval over problems, and phi of the successes:",
        "",
        *restart_table(task, rows),
        "By depth (all chosen problems):",
        "",
        *depth_table(task, rows),
        "By whether the text of the state is wrong already (`Task.prefix_is_wrong`); *sound* are successes that state",
        "nothing wrong, of those that can be checked (none after a wrong text, by its meaning):",
        "",
        *wrong_table(rows),
        "Success of the state that a selector picks among the failed states of a problem:",
        "",
        *choice_table(results),
        "Generated tokens and seconds of the stages: "
        + "; ".join(
            f"{name} {sum(one['stages'][name]['tokens'] for one in results) / 1000:.0f} k, "
            f"{sum(one['stages'][name]['seconds'] for one in results) / 60:.0f} min"
            for name in results[0]["stages"]
        )
        + ".",
        "",
    ]
    best = gains(task, rows, "best", range(len(DEPTHS)))
    checks = [check(f"assay {task}: share of problems with 0 of {samples}", float((won == 0).mean()), "share")]
    checks += [check(f"assay {task}: gain of failures by Monte-Carlo value", best[0].value, "ratio")] if best else []
    return lines, checks


def gains(task: str, rows: Sequence[Any], kind: str, depths: Sequence[int]) -> tuple[Any, ...] | None:
    """M of a kind of restart at these depths, its successes, phi as text, and the wrong share of its prefixes as text;
    None without such a restart."""
    own = [row for row in rows if kind in row]
    if not own:
        return None
    tallies = np.array([np.sum([row[kind][depth][:4] for depth in depths], axis=0) for row in own])
    roots = [tuple(row["root"][:2]) for row in own]
    prefixes = [row[kind][depth][4] for row in own for depth in depths]
    told = [one for one in prefixes if one is not None]
    won, _, wrong, known = tallies.sum(axis=0).tolist()
    return (
        gain([tuple(one) for one in tallies[:, :2].tolist()], roots, f"{task} {kind}"),
        won,
        f"{100 * wrong / known:.0f} % of {known}" if known else "-",
        f"{100 * sum(told) / len(told):.0f} % of {len(told)}" if told else "-",
    )


def restart_table(task: str, rows: Sequence[Any]) -> list[str]:
    """A row for each kind of restart and group of problems."""
    table = []
    for group, chosen in (
        ("all", rows),
        ("with a success", [row for row in rows if row["solved"]]),
        ("0 of 16", [row for row in rows if not row["solved"]]),
    ):
        won, _, wrong, known = np.sum([row["root"] for row in chosen], axis=0).tolist() if chosen else [0] * 4
        phi = f"{100 * wrong / known:.0f} % of {known}" if known else "-"
        table.append(["root", group, str(len(chosen)), str(won), "1", phi, "-"])
        for kind in KINDS:
            if found := gains(task, chosen, kind, range(len(DEPTHS))):
                count = str(sum(kind in row for row in chosen))
                table.append([TITLES[kind], group, count, str(found[1]), text_of(found[0], never=NEVER), *found[2:]])
    return grid(["restart", "problems", "number", "successes", "M", "phi", "prefix wrong already"], table)


def depth_table(task: str, rows: Sequence[Any]) -> list[str]:
    """M by kind and depth."""
    table = []
    for kind in KINDS:
        found = [gains(task, rows, kind, [at]) for at in range(len(DEPTHS))]
        table.append([TITLES[kind], *("-" if one is None else text_of(one[0], never=NEVER) for one in found)])
    return grid(["restart", *(f"M at {depth:g}" for depth in DEPTHS)], table)


def wrong_table(rows: Sequence[Any]) -> list[str]:
    """Success of the continuations by kind of restart and by what the check says about the state."""
    table = []
    for kind in KINDS:
        states = [state for row in rows for state in row.get(kind, ())]
        for word, wrong in (("wrong", True), ("not wrong", False), ("not known", None)):
            if own := [state[:4] for state in states if state[4] is wrong]:
                won, _, lucky, known = np.sum(own, axis=0).tolist()
                rate = f"{100 * won / (CONTINUATIONS * len(own)):.1f} %"
                ratio = _of_the_right(rows, kind) if wrong else "-"
                table.append([TITLES[kind], word, str(len(own)), rate, ratio, f"{known - lucky} of {known}"])
    heading = ["restart", "text of the state", "states", "success", "divided by that of states not wrong", "sound"]
    return grid(heading, table)


def _of_the_right(rows: Sequence[Any], kind: str) -> str:
    """Success per wrong state divided by that per state that is not wrong, with a bootstrap interval over problems;
    '-' where one of both never succeeds."""
    wrong_ones, right_ones = (
        [(sum(state[0] for state in row[kind] if state[4] is wrong), sum(state[4] is wrong for state in row[kind]))
         for row in rows if kind in row]
        for wrong in (True, False)
    )  # fmt: skip
    known = all(any(won for won, _ in ones) for ones in (wrong_ones, right_ones))
    return text_of(gain(wrong_ones, right_ones, f"wrong {kind}"), never=NEVER) if known else "-"


def choice_table(results: Sequence[Result]) -> list[str]:
    """Precision of each selector, over problems."""
    rng = generator(0, "bench.real", "precision")
    rows = []
    for name in results[0]["precision"]:
        values = [value for one in results for value in one["precision"][name]]
        rows.append([name, text_of(mean_over_seeds(values, rng), 100, 1), str(len(values))])
    aucs = [f"{one:.2f}" for result in results for one in result["critic"].get("auc", []) if one is not None]
    note = [f"AUC of the critic before each of its updates: {', '.join(aucs)}.", ""] if aucs else []
    return [*grid(["selector", "success, %", "problems"], rows), *note]


def _smoothed(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Thousands of generated tokens, and the success from the root: means of `SMOOTHED` iterations that end there."""
    tokens = np.cumsum(result["iterations"]["generated_tokens"]) / 1000
    success = np.array(result["iterations"]["root_success"], np.float64)
    width = min(SMOOTHED, len(success))
    return tokens[width - 1 :], np.convolve(success, np.ones(width) / width, "valid")


def draw(arms: Arms, path: Path) -> None:
    """Two panels. Left: held-out pass@1 at the end, of all problems and by level: a dot for each seed index, a bar for
    their mean, a dotted line for the success before training. Right: success from the root in training against
    generated tokens, each run thin and the mean over seed indices thick."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    starts = [by_level(one["evaluations"][0]) for seeds in arms.values() for one in seeds.values()]
    groups = list(starts[0])
    for at, group in enumerate(groups):
        before = float(np.mean([one[group] for one in starts]))
        left.hlines(before, at - 0.45, at + 0.45, color="grey", linestyle=":")
    for at, (arm, seeds) in enumerate(arms.items()):
        places = np.arange(len(groups)) + 0.8 * ((at + 0.5) / len(arms) - 0.5)
        ends = np.array([[by_level(one["evaluations"][-1])[group] for group in groups] for one in seeds.values()])
        left.bar(places, ends.mean(axis=0), 0.7 / len(arms), color=f"C{at}", alpha=0.4, label=f"{arm} ({len(seeds)})")
        left.plot(places, ends.T, "o", color=f"C{at}", markersize=3)
        curves = [_smoothed(one) for one in seeds.values()]
        for tokens, success in curves:
            right.plot(tokens, success, color=f"C{at}", alpha=0.2, linewidth=0.7)
        points = np.linspace(max(tokens[0] for tokens, _ in curves), min(tokens[-1] for tokens, _ in curves), 101)
        right.plot(points, np.mean([np.interp(points, *curve) for curve in curves], axis=0), color=f"C{at}")
    left.set(ylabel="held-out pass@1 at the end (dotted: before)", ylim=(0, None))
    left.set_xticks(range(len(groups)), groups)
    left.legend(title="arm (seed indices)", fontsize=8)
    right.set(xlabel="thousand generated tokens", ylabel="success from the root in training", ylim=(0, None))
    figure.savefig(path, dpi=80)
