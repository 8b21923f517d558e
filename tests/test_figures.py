"""Figures agree: what the README and the pages quote equals docs/figures.yaml and bench/results."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.learning.page import mean, ratio_text, read_settings, tokens_to_half
from bench.real.plan import ARMS
from bench.report import RESULTS
from bench.runs import Arms, Result, arms_of
from bench.statistics import difference, text_of, with_interval
from core.run_directory import read_jsonl

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
FIGURES: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "figures.yaml").read_text("utf-8"))
MARKED = {"README.md": {"real"}, "docs/results.md": {"real", "learning"}}
BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


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
    """What a cell says of a setting of bench.learning. `column`: a measure and an arm, or a ratio, `0.5 ARM/ARM`."""
    measure, _, arm = column.rpartition(" ")
    if measure == "0.5":
        one, other = arm.split("/")
        return ratio_text(tokens_to_half(learning()[setting], one, other), other)
    return text_of(mean([*learning()[setting][arm].values()], measure), 100 if measure == "before" else 1)


def of_real(part: str, measure: str, column: str) -> str:
    """What a cell says of a part of bench.real. `measure`: an entry of the evaluation in per cent, or a level.
    `column`: an arm at the end, `before` (all arms), or `ARM - ARM` in points over the seed indices of both."""
    arms = real(part)

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


def marked(page: str) -> Iterator[tuple[str, str]]:
    """Cells of the tables whose marker says what each row and column is, and what they should say."""
    for marker, table in re.findall(r"<!-- ((?:learning|real) \| .*?) -->\n((?:\|.*\n)+)", page):
        kind, *parts = marker.split(" | ")
        fields = dict(part.split(": ") for part in parts)
        for row, line in zip(fields["rows"].split(", "), table.splitlines()[2:], strict=True):
            cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
            for column, cell in zip(fields["columns"].split(", "), cells, strict=True):
                yield cell, of_learning(row, column) if kind == "learning" else of_real(fields["part"], row, column)


@BY_PAGE
def test_tables_say_what_the_runs_say(page: Path) -> None:
    assert [(cell, value) for cell, value in marked(page.read_text("utf-8")) if cell != value] == []


def test_the_tables_of_results_are_marked() -> None:
    kinds = {page: set(re.findall(r"<!-- (learning|real) \|", (ROOT / page).read_text("utf-8"))) for page in MARKED}
    assert kinds == MARKED


@BY_PAGE
def test_quoted_figures_are_those_of_the_list(page: Path) -> None:
    text = page.read_text("utf-8")
    for mark in re.finditer(r"<!--([\w.]+)-->", text):
        assert text[: mark.start()].endswith(text_of_figure(mark[1])), mark[1]
    for names, block in re.findall(r"<!-- below: (.*?) -->\n+```text\n(.*?)```", text, re.DOTALL):
        assert [name for name in names.split(", ") if text_of_figure(name) not in block] == []


def test_every_figure_of_the_list_is_quoted() -> None:
    quoted = " ".join(re.findall(r"<!--(.*?)-->", "\n".join(page.read_text("utf-8") for page in PAGES)))
    assert [name for name in FIGURES if name not in re.findall(r"[\w.]+", quoted)] == []


def least_and_greatest(figure: Mapping[str, Any]) -> list[float]:
    """The values of a figure's checks, or of its ratio over the settings where both arms get there."""
    if "benchmark" in figure:
        checks = json.loads((RESULTS / f"{figure['benchmark']}.json").read_text("utf-8"))["checks"]
        return [one["value"] * figure.get("factor", 1) for one in checks if one["name"].endswith(figure["check"])]
    found = [
        tokens_to_half(arms, figure["tokens"], figure["to"])
        for setting, arms in learning().items()
        if setting.split()[1] in figure["hardness"]
    ]
    return [one.value for one in found if one and 0 < one.value < math.inf]


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if isinstance(figure, dict)])
def test_figures_of_benchmarks_are_those_of_their_results(name: str) -> None:
    figure = FIGURES[name]
    if "real" in figure:
        assert figure["text"] == of_real(figure["real"], figure["measure"], figure["column"])
        return
    values, words = least_and_greatest(figure), re.findall(r"\d+(?:\.\d+)?", figure["text"])
    digits = len(words[0].partition(".")[2])
    assert words == [f"{value:.{digits}f}" for value in (min(values), max(values))][: len(words)]
    assert len(words) == 2 or len(values) == 1
