"""Figures agree: what the README and the pages quote equals docs/figures.yaml and bench/results."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.learning.page import mean, read_settings
from bench.real.page import IDLE, seconds
from bench.real.plan import ARMS
from bench.report import RESULTS
from bench.runs import Arms, Result, arms_of
from bench.statistics import difference, with_interval
from core.run_directory import read_jsonl

ROOT = Path(__file__).parents[1]
LIST: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "figures.yaml").read_text("utf-8"))
FIGURES: dict[str, Any] = LIST["figures"]
QUOTES = [(page, words) for page, quotes in LIST["quotes"].items() for words in quotes]
NAME = r"\{([\w.]+)\}"


def text_of_figure(name: str) -> str:
    figure = FIGURES[name]
    return str(figure["text"] if isinstance(figure, dict) else figure)


@cache
def learning() -> Mapping[str, Arms]:
    return read_settings(RESULTS / "learning.jsonl")


@cache
def real(part: str) -> Arms:
    return arms_of(read_jsonl(RESULTS / "real" / f"{part}.jsonl"), ARMS)


def of_learning(setting: str, column: str) -> str:
    """What a cell says of a setting of bench.learning, in per cent. `column`: a measure and an arm, perhaps `- ARM`."""
    first, _, other = column.partition(" - ")
    measure, _, arm = first.rpartition(" ")
    return with_interval(mean(learning()[setting], measure, arm, other), 100)


def of_real(part: str, measure: str, column: str) -> str:
    """What a cell says of a part of bench.real. `measure`: an entry of the evaluation in per cent, a level, or
    `seconds`. `column`: an arm at the end, `before` (all arms), or `ARM - ARM` in points over the seed indices of
    both."""
    arms = real(part)
    if measure == "seconds":
        rows = [row for row in arms.get(column, {}).values() if row["machine"] == LIST["machines"][part]]
        idle = [seconds(row) for row in rows if max(row["load"]) < IDLE]
        return with_interval(difference(idle)) if idle else ""

    def _success(row: Result, at: int) -> float:
        found = row["evaluations"][at]
        return float((found | found["levels"])[measure])

    if column == "before":
        first = {seed: _success(row, 0) for seeds in arms.values() for seed, row in seeds.items()}
        return with_interval(difference([*first.values()]), 100)
    plus, _, minus = column.partition(" - ")
    seeds = sorted(arms[plus].keys() & arms[minus or plus].keys())
    others = [_success(arms[minus][seed], -1) if minus else 0.0 for seed in seeds]
    return with_interval(difference([_success(arms[plus][seed], -1) for seed in seeds], others), 100)


def of_row(row: str, column: str) -> str:
    """What a cell says. `row`: a part of bench.real and an entry of its evaluations, or a setting of bench.learning."""
    part, measure = row.split(" ", 1)
    return of_real(part, measure, column) if (RESULTS / "real" / f"{part}.jsonl").exists() else of_learning(row, column)


def cells(page: str, heading: str) -> list[list[str]]:
    """The body of the table whose first column has this heading, without that column."""
    (body,) = re.findall(
        rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", (ROOT / page).read_text("utf-8"), re.MULTILINE
    )
    return [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in body.splitlines()]


def of_arm(arm: str, column: str) -> str:
    """What a cell says in a table with an arm per row. `column`: a part, a measure, and `*` for the arm, perhaps less
    another."""
    part, measure, what = column.split(" ", 2)
    baseline = what.removeprefix("* - ")
    return "" if baseline != what and arm in ("before", baseline) else of_real(part, measure, what.replace("*", arm))


@pytest.mark.parametrize("table", LIST["tables"], ids=lambda table: f"{table['page']}: {table['heading']}")
def test_tables_say_what_the_runs_say(table: Mapping[str, Any]) -> None:
    cell, rows = (of_arm, table["arms"]) if "arms" in table else (of_row, table["rows"])
    assert cells(table["page"], table["heading"]) == [
        [cell(row, column) for column in table["columns"]] for row in rows
    ]


@pytest.mark.parametrize(("page", "words"), QUOTES, ids=[f"{page}: {words}" for page, words in QUOTES])
def test_pages_quote_the_figures_of_the_list(page: str, words: str) -> None:
    expected = re.sub(NAME, lambda name: text_of_figure(name[1]), words)
    assert expected in " ".join((ROOT / page).read_text("utf-8").split())


def test_every_figure_of_the_list_is_quoted() -> None:
    assert FIGURES.keys() == {name for _, words in QUOTES for name in re.findall(NAME, words)}


def least_and_greatest(figure: Mapping[str, Any]) -> list[float]:
    """The values of a figure's checks."""
    checks = json.loads((RESULTS / f"{figure['benchmark']}.json").read_text("utf-8"))["checks"]
    return [one["value"] * figure.get("factor", 1) for one in checks if one["name"].endswith(figure["check"])]


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if isinstance(figure, dict)])
def test_figures_of_benchmarks_are_those_of_their_results(name: str) -> None:
    figure = FIGURES[name]
    if "real" in figure:
        assert figure["text"] == of_real(figure["real"], figure["measure"], figure["column"])
        return
    if "learning" in figure:
        assert figure["text"] == of_learning(figure["learning"], figure["column"])
        return
    values, words = least_and_greatest(figure), re.findall(r"\d+(?:\.\d+)?", figure["text"])
    digits = len(words[0].partition(".")[2])
    assert words == [f"{value:.{digits}f}" for value in (min(values), max(values))][: len(words)]
    assert len(words) == 2 or len(values) == 1
