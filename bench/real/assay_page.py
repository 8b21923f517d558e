"""The assay, from its results (PROTOCOL.md, P0). Invariant: no number without its interval over problems."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.real.assay import CONTINUATIONS, DEPTHS
from bench.report import Check, check, grid
from bench.runs import Result
from bench.statistics import gain, mean_over_seeds, text_of
from core.seeds import generator

NEVER = "no success from the root"
KINDS = ("own", "random", "best", "canonical")  # of restarts
TITLES = {
    "own": "own success",
    "random": "failure, at random",
    "best": "failure, by Monte-Carlo value",
    "canonical": "canonical solution",
}


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
