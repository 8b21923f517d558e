"""The page of the experiment: bench/results/learning.md and .json, and one plot per setting, from the results' tables.
Invariant: no number without its interval over seeds, and none from arms of unlike commits without saying so."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bench.learning.measures import LEARNT, MASTERED, area, plain, reached_between
from bench.learning.plan import ABLATIONS, ARMS, HARDNESSES, SETTINGS, with_solutions
from bench.learning.plots import draw, overview, panels_of
from bench.learning.results import (
    ABLATED,
    ENOUGH,
    OURS,
    Arms,
    Result,
    Setting,
    average,
    curve,
    passes,
    read_results,
    success_before,
)
from bench.learning.statistics import Interval, mean_over_seeds, median_over_seeds, token_ratio, tokens_to_mastery
from bench.report import Check, check, write
from core.seeds import generator

OVERSAMPLING = ("oversampling", "oversampling_small", "oversampling_kl")
RESAMPLED = ("ppo_resample", "grpo_resample")
BASELINES = (
    "ppo", "ppo_small", "ppo_growing", "ppo_falling", "ppo_kl", "ppo_kl_falling", "grpo", "grpo_kl", *RESAMPLED,
    *OVERSAMPLING,
)  # fmt: skip
OTHERS = (
    "value", "value_small", "uniform", "uniform_small", "uniform_filtered_small", "success_prefix_small",
    "frontier_small", "learnability_small", "ppo_imitating", "ppo_kl_imitating", *OVERSAMPLING,
)  # fmt: skip
"""Arms that ours must beat, also where they are not the best baseline."""
LEVEL, HALFWAY = 0.8, 0.5  # held-out success that counts as mastery, and one for settings that no arm masters
REACHED = {"to half": HALFWAY, "to mastery": LEVEL}
HALF, FREE = 0.5, 1.05  # goals of the token ratio: medium and hard, and easy
NO_LOSS = -0.02  # a smaller loss of pass@k counts as none


def measures(results: Sequence[Result]) -> dict[str, Interval]:
    """All measures of one arm over its seeds."""
    rng = generator(0, "bench.learning")
    curves = [curve(one) for one in results]
    per_seed = {
        **{name: [of(one) for one in results] for name, of in MEASURE.items()},
        "pass@k": [passes(one) for one in results],
        "replayed success": [average(one, "replay_success") for one in results],
        "erroneous": [average(one, "erroneous_share") for one in results],
        "learnability": [average(one, "learnability") for one in results],
        "AUC within": [average(one, "value_auc_within") for one in results],
        "KL": [average(one, "kl") for one in results],
        "seconds": [one["final"]["seconds"] for one in results],
        "trained tokens": [one["final"]["trained"] for one in results],
    }
    found = {name: mean_over_seeds(values, rng) for name, values in per_seed.items()}
    first = [one["first_success"]["root"] for one in results]
    times = {
        "first success": [math.inf if at is None else float(at) for at in first],
        "then to mastery": [tokens_to_mastery(c, at, LEVEL) for c, at in zip(curves, first, strict=True)],
    }
    for name, level in REACHED.items():
        after, by = zip(*(reached_between(one, level) for one in curves), strict=True)
        times |= {f"{name}, after": [float(at) for at in after], f"{name}, by": list(by)}
    return found | {name: median_over_seeds(values, rng) for name, values in times.items()}


def best_baseline(arms: Arms, measure: str) -> str | None:
    """The baseline with the largest mean `MEASURE`, of those with the most seeds; None without a baseline. Arms that
    end above `MASTERED` end equally: the area decides between them."""
    most = max((len(arms[name]) for name in BASELINES if name in arms), default=0)
    known = [name for name in BASELINES if name in arms and len(arms[name]) == most]

    def _rank(name: str) -> tuple[float, float]:
        mean, tie = (float(np.mean([MEASURE[of](one) for one in arms[name].values()])) for of in (measure, "area"))
        return min(mean, MASTERED), tie

    return max(known, key=_rank, default=None)


MEASURE: Mapping[str, Callable[[Result], float]] = {
    "final success": lambda one: one["final"]["pass@1"]["mean"],
    "area": lambda one: area(curve(one), one["budget"]),
}


def ratio_to(arms: Arms, arm: str, baseline: str, level: float | None = None) -> Interval | None:
    """The token ratio of two arms on the seeds that both have (`token_ratio`); None without such a seed."""
    seeds = sorted(arms[arm].keys() & arms[baseline].keys())
    if not seeds:
        return None
    mine, theirs = ([curve(arms[name][seed]) for seed in seeds] for name in (arm, baseline))
    return token_ratio(mine, theirs, arms[arm][seeds[0]]["budget"], level, generator(0, "bench.learning", arm))


def text_of(
    value: Interval | None, scale: float = 1.0, digits: int = 2, *, never: str = "never", zero: str = ""
) -> str:
    """The value with its interval, of one seed without; '-' for none. `never`, `zero`: words for infinity and 0.

    >>> text_of(Interval(0.5, 0.25, 0.75, 5)), text_of(Interval(math.inf, 1000, math.inf, 5), 1e-3, 0)
    ('0.50 (0.25 to 0.75)', 'never (1 to never)')
    """
    if value is None or math.isnan(value.value):
        return "-"
    shown = [
        never if math.isinf(x) else zero if zero and x == 0 else f"{x * scale:.{digits}f}"
        for x in (value.value, value.low, value.high)
    ]
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if value.seeds > 1 else f"{shown[0]} (one seed)"


Columns = Sequence[tuple[str, str, float, int]]  # Measure, heading, factor, digits
COLUMNS: Columns = (
    ("area", "area under the curve", 1.0, 2),
    ("seconds", "seconds", 1.0, 0),
    ("final success", "final success", 1.0, 2),
    ("pass@k", "pass@k, k = samples", 1.0, 2),
    ("to half", f"to {HALFWAY}, k tokens", 1e-3, 0),
    ("to mastery", f"to {LEVEL}, k tokens", 1e-3, 0),
    ("replayed success", "replayed success", 1.0, 2),
    ("erroneous", "erroneous", 1.0, 2),
)
MORE_COLUMNS: Columns = (
    ("first success", "first success, k tokens", 1e-3, 0),
    ("then to mastery", f"then to {LEVEL}, k tokens, interpolated", 1e-3, 0),
    ("learnability", "learnability", 1.0, 2),
    ("AUC within", "AUC within", 1.0, 2),
    ("KL", "KL", 1.0, 4),
    ("trained tokens", "trained, k tokens", 1e-3, 0),
)
"""Those of the second table of a setting."""


def section(setting: Setting, arms: Arms, plot: str) -> list[str]:
    """The tables of one setting: the arms, those with canonical solutions last, and the ablations of ours."""
    results = [one for seeds in arms.values() for one in seeds.values()]
    start = mean_over_seeds(success_before(arms), generator(0, "bench.learning"))
    usual = sorted((arm for arm in ARMS if arm in arms and arm not in ABLATIONS), key=with_solutions)
    varied = [arm for arm in ABLATIONS if arm in arms]
    lines = [
        f"## {', '.join(setting)}",
        "",
        f"Root success before training {text_of(start, digits=4)}, budget {results[0]['budget']:,} generated tokens, "
        f"commits {', '.join(sorted({one['commit'] for one in results}))}. ![curves]({plot})",
        "",
        *table(arms, usual, setting),
    ]
    if varied and ABLATED in arms:
        lines += [f"`{ABLATED}` with one piece changed:", "", *table(arms, [ABLATED, *varied], setting, ABLATED)]
    return [*lines, "More measures:", "", *more_measures(arms, [*usual, *varied])]


LEADING = {"area": 2, "seconds": 0, "final success": 2}  # measures of the first table, and their digits


def summary(found: Mapping[Setting, Arms]) -> list[str]:
    """Where replay pays: ours against the best baselines, a row per setting that has both."""
    heading = ["setting", "root success", "best baselines"]
    heading += [f"{what} of {whose}" for what in LEADING for whose in ("these", f"`{OURS}`")]
    heading += [f"tokens to {HALFWAY}", f"tokens to {LEVEL}", "tokens to their final success"]
    rows = []
    for setting, arms in found.items():
        fastest, highest = best_baseline(arms, "area"), best_baseline(arms, "final success")
        if OURS not in arms or fastest is None or highest is None:
            continue
        names = dict.fromkeys((fastest, highest))
        known = {name: measures([arms[name][at] for at in sorted(arms[name])]) for name in (*names, OURS)}
        leading = [
            ", ".join(text_of(known[name][what], 1.0, digits) for name in whose)
            for what, digits in LEADING.items()
            for whose in (names, (OURS,))
        ]
        before = mean_over_seeds(success_before(arms), generator(0, "bench.learning"))
        row = [
            f"{', '.join(setting)} ({len(arms[OURS])} seeds)",
            text_of(before, digits=4),
            ", ".join(names),
            *leading,
            *ratios(arms, fastest)[:2],
            ratios(arms, highest)[2],
        ]
        rows.append(row)
    return grid(heading, rows)


def table(arms: Arms, names: Sequence[str], setting: Setting, ours: str = OURS) -> list[str]:
    """The main measures of some arms, a row each, and the tokens of the arm `ours` divided by theirs."""
    heading = ["arm", "seeds", *(title for _, title, _, _ in COLUMNS)]
    heading += [f"tokens of `{ours}` / its: to {HALFWAY}", f"to {LEVEL}", "to its final success"]
    task, hardness = setting
    falling = SETTINGS[task][hardness].falling
    rows = []
    for arm in names:
        notes = ["given solutions"] * with_solutions(arm) + ["rate falls"] * (arm in falling)
        title = f"{arm} ({', '.join(notes)})" if notes else arm
        rows.append([title, str(len(arms[arm])), *cells(arms[arm], COLUMNS), *ratios(arms, arm, ours)])
    return grid(heading, rows)


def more_measures(arms: Arms, names: Sequence[str]) -> list[str]:
    """The other measures of some arms, a row each."""
    heading = ["arm", *(title for _, title, _, _ in MORE_COLUMNS)]
    return grid(heading, [[arm, *cells(arms[arm], MORE_COLUMNS)] for arm in names])


def grid(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = [" | ".join(heading), " | ".join(["---"] * len(heading)), *(" | ".join(row) for row in rows)]
    return [*(f"| {line} |" for line in lines), ""]


def cells(seeds: Mapping[int, Result], columns: Columns) -> list[str]:
    """The measures of one arm as text."""
    found = measures([seeds[seed] for seed in sorted(seeds)])
    return [
        bracket(found, name, scale) if name in REACHED else text_of(found[name], scale, digits)
        for name, _, scale, digits in columns
    ]


def bracket(found: Mapping[str, Interval], name: str, scale: float) -> str:
    """Between which evaluations a success is first reached, medians over seeds, as text."""
    after, by = found[f"{name}, after"].value, found[f"{name}, by"].value
    return "never" if math.isinf(by) else f"{after * scale:.0f} to {by * scale:.0f}"


def ratios(arms: Arms, arm: str, ours: str = OURS) -> list[str]:
    """The tokens of the arm `ours` divided by those of an arm: to both levels, and to the arm's final success."""
    if ours not in arms or arm == ours:
        return ["-"] * 3
    return [
        text_of(ratio_to(arms, ours, arm, level), never="ours never", zero="arm never")
        for level in (HALFWAY, LEVEL, None)
    ]


def goals(setting: Setting, arms: Arms) -> list[Check]:
    """The checks of one setting, from `ENOUGH` seeds on. A ratio is 0 where the other arm never gets there."""
    fastest, highest = best_baseline(arms, "area"), best_baseline(arms, "final success")
    if OURS not in arms or fastest is None or highest is None:
        return []
    checks: list[Check] = []
    title = ", ".join(setting)
    goal, upper = (FREE, FREE) if setting[1] == HARDNESSES[0] else (HALF, 1.0)
    others = [name for name in OTHERS if name in arms]
    for other, level in [(highest, None), *((name, LEVEL) for name in dict.fromkeys((fastest, *others)))]:
        ratio = ratio_to(arms, OURS, other, level)
        if ratio and math.isnan(ratio.value) and other != highest:  # neither arm gets to LEVEL
            level, ratio = None, ratio_to(arms, OURS, other)
        if ratio is None or ratio.seeds < ENOUGH or math.isnan(ratio.value):
            continue
        what = f"to {LEVEL} of {OURS} / {other}" if level else f"of {OURS} to the final success of {other} / its tokens"
        if other in (fastest, highest):
            checks.append(check(f"{title}: tokens {what}", ratio.value, "ratio", "<=", goal, baseline=1.0))
        name = f"{title}: tokens {what}, upper end of its interval"
        checks.append(check(name, ratio.high, "ratio", "<=", upper, baseline=1.0))
    seeds = sorted(arms[OURS].keys() & arms[highest].keys())
    if len(seeds) >= ENOUGH:
        lost = mean_over_seeds(
            [passes(arms[OURS][at]) - passes(arms[highest][at]) for at in seeds], generator(0, "bench.learning")
        )
        name = f"{title}: pass@k of {OURS} less that of {highest}, lower end of its interval"
        checks.append(check(name, lost.low, "share", ">=", NO_LOSS))
    value = "value" if "value" in arms else "value_small"
    if min(len(arms.get(value, {})), len(arms[OURS])) >= ENOUGH:
        wrong = [measures(list(arms[arm].values()))["erroneous"].value for arm in (OURS, value)]
        name = f"{title}: erroneous replayed states of {OURS} / {value}"
        checks.append(check(name, wrong[0] / wrong[1], "ratio", "<=", HALF, baseline=1.0))
    return checks


def write_page(folder: Path, *, quick: bool) -> None:
    """Write the page, its JSON and its plots from the tables in `folder`."""
    runs = read_results(folder)
    found = {(task, level): runs[task, level] for task in SETTINGS for level in HARDNESSES if (task, level) in runs}
    lines, checks, numbers = [HEAD, *summary(found)], [], {}
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

Does replay learn more than PPO? `{OURS}` replays states and repeats earlier own successes. `{ABLATED}` only
replays, `ppo_kl_imitating` only repeats. The first table has a row per setting. It compares `{OURS}` with two
baselines that do neither: the one with the largest area, and the one that ends highest. *Area* is the mean held-out
success over the budget: the area under the curve, divided by it. *Seconds* are those of training, on machines that also
did other things. The last three columns are ratios of tokens: those of `{OURS}` divided by those of the first
baseline (to {HALFWAY} and to {LEVEL}) and of the second (to its final success, which counts as at least {LEARNT} above the
first and at most {MASTERED}).

Every row of the other tables is one arm over its seeds: the value and, in brackets, its 95 % bootstrap interval over
seeds. Success is the share of right responses to held-out problems, sampled from the root at temperature 1. A run is
evaluated about 20 times, so of the tokens to a success only the evaluations before and after are known: the tables have
the medians of both over seeds. The ratios of tokens interpolate the mean curves between evaluations: below 1
`{OURS}` is faster, and a difference of a twentieth of a run says little. "Arm never": the arm does not get
there. "Rate falls": its learning rate does, over the run.

**What {ENOUGH} seeds can show**: large effects. If an arm is better in all {ENOUGH} pairs, the two-sided sign-flip test gives
p = 0.0625, and it can give no less. A 95 % bootstrap interval over {ENOUGH} seeds holds the mean in about 84 % of cases.
Fewer seeds say less, and one seed says nothing about which arm is better.

The plots leave out arms with 32 fresh problems, but for `ppo` and `grpo`. [bench/README.md](../README.md) explains the
columns and how to rerun or continue the matrix.
"""
