"""Figures agree: what the README and the pages quote equals docs/figures.yaml and bench/results."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from bench.learning.page import best_baseline, measures, ratio_to
from bench.learning.plan import ARMS
from bench.learning.results import Arms, Setting, read_results, success_before
from bench.learning.statistics import Interval, mean_over_seeds
from bench.real.page import arms_of, with_interval
from bench.real.statistics import difference
from bench.report import RESULTS
from core.run_directory import read_jsonl
from core.seeds import generator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
FIGURES: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "figures.yaml").read_text("utf-8"))
BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def text_of(name: str) -> str:
    figure = FIGURES[name]
    return str(figure["text"] if isinstance(figure, dict) else figure)


@cache
def runs(folder: str) -> dict[Setting, Arms]:
    """The runs of the experiment, or those of changed code in a folder of their own."""
    return dict(read_results(RESULTS / "learning" / folder))


@cache
def measured(folder: str, setting: Setting, arm: str) -> dict[str, Interval]:
    if not folder:
        record = json.loads((RESULTS / "learning.json").read_text("utf-8"))["measures"][", ".join(setting)][arm]
        for one in record.values():
            one.update({end: math.inf for end in ("value", "low", "high") if one[end] is None})
        return {name: Interval(**one) for name, one in record.items()}
    seeds = runs(folder)[setting][arm]
    return measures([seeds[seed] for seed in sorted(seeds)])


@cache
def expected(folder: str, setting: Setting, column: str, row_arm: str) -> Interval | None:
    """What a column says of an arm: a measure such as `final success ARM`, `root`, or a ratio of tokens to a level,
    `0.5 ARM/ARM`. `best` is the arm without replay and imitation that ends highest, and for tokens the one with the
    largest area."""
    arms = runs(folder)[setting]
    if column == "root":
        return mean_over_seeds(success_before(arms), generator(0, "bench.learning"))
    ratio = re.fullmatch(r"([\d.]+) (\w*)/(\w+)", column)
    if ratio:
        other = best_baseline(arms, "area") if ratio[3] == "best" else ratio[3]
        assert other
        return ratio_to(arms, ratio[2] or row_arm, other, float(ratio[1]))
    measure, _, arm = column.rpartition(" ")
    if arm not in {*ARMS, "best"}:
        measure, arm = column, row_arm
    own = best_baseline(arms, measure) if arm == "best" else arm
    return measured(folder, setting, str(own))[measure]


def shown(value: float, like: str) -> str:
    """A number as the page shows another one: with as many digits behind the point."""
    return "never" if math.isinf(value) else f"{value:.{len(like.partition('.')[2])}f}"


def differs(cell: str, found: Interval | None) -> bool:
    """Whether a cell such as '0.58 (0.19 to 0.97)', '0.1 (at most 0.2)', '1.6 %' or 'PPO never' says something else."""
    numbers = cell[0].isdigit() or cell.startswith(("never", "at most"))
    words = re.findall(r"never|\d+(?:\.\d+)?", cell) if numbers else []
    if found is None or not words:  # words alone: one of the two arms never gets there
        return not (found is None or math.isnan(found.value) or found.value in (0.0, math.inf))
    ends = [found.value, found.low, found.high]
    values = [found.high] if cell.startswith("at most") else [found.value, found.high] if "at most" in cell else ends
    scale = 100 if "%" in cell else 1
    return words != [shown(scale * value, like) for value, like in zip(values, words, strict=False)]


@cache
def real_runs(part: str) -> Mapping[str, Mapping[int, dict[str, Any]]]:
    """The results of a part of bench.real, by arm and seed index."""
    return arms_of(read_jsonl(RESULTS / "real" / f"{part}.jsonl"))


def of_real(part: str, measure: str, column: str) -> str:
    """What a cell says of a part of bench.real. `measure`: an entry of the evaluation in per cent, or a level.
    `column`: an arm at the end, `before` (all arms), or `ARM - ARM` in points over the seed indices of both."""
    arms = {**real_runs("sums"), **real_runs(part)} if part == "epochs" else real_runs(part)  # P1b compares with P1a

    def _success(row: dict[str, Any], at: int) -> float:
        found = row["evaluations"][at]
        return float((found | found["levels"])[measure])

    if column == "before":
        first = {seed: _success(row, 0) for seeds in arms.values() for seed, row in seeds.items()}
        return with_interval(difference([*first.values()], [0.0] * len(first)), 100)
    plus, _, minus = column.partition(" - ")
    seeds = sorted(arms[plus].keys() & arms[minus or plus].keys())
    others = [_success(arms[minus][seed], -1) if minus else 0.0 for seed in seeds]
    return with_interval(difference([_success(arms[plus][seed], -1) for seed in seeds], others), 100)


def real_cells(page: str) -> Iterator[tuple[str, str]]:
    """Cells of the tables of bench.real, and what they should say."""
    for part, rows, columns, table in re.findall(
        r"<!-- real \| part: (.*?) \| rows: (.*?) \| columns: (.*?) -->\n((?:\|.*\n)+)", page
    ):
        for row, line in zip(rows.split(", "), table.splitlines()[2:], strict=True):
            cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
            for column, cell in zip(columns.split(", "), cells, strict=True):
                yield cell, of_real(part, row, column)


@BY_PAGE
def test_tables_say_what_the_runs_of_the_pretrained_model_say(page: Path) -> None:
    assert [(cell, value) for cell, value in real_cells(page.read_text("utf-8")) if cell != value] == []


class Cell(NamedTuple):
    """A cell of a table whose marker says what each row and column is."""

    folder: str
    setting: Setting
    arm: str
    column: str
    text: str


def cells(page: str) -> Iterator[Cell]:
    for marker, table in re.findall(r"<!-- learning \| (.*?) -->\n((?:\|.*\n)+)", page):
        fields = dict(part.split(": ") for part in marker.split(" | "))
        rows, columns = (fields[name].split(", ") for name in ("rows", "columns"))
        lines = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in table.splitlines()[2:]]
        for row, line in zip(rows, lines, strict=True):
            for column, text in zip(columns, line, strict=True) if row != "-" else ():
                task, hardness = fields.get("setting", row).split()
                arm = row if "setting" in fields else ""
                if column != "-":
                    yield Cell(fields.get("folder", ""), (task, hardness), arm, column, text)


@BY_PAGE
def test_tables_say_what_the_runs_of_the_experiment_say(page: Path) -> None:
    found = [(cell, expected(*cell[:2], cell.column, cell.arm)) for cell in cells(page.read_text("utf-8"))]
    assert [(cell, value) for cell, value in found if differs(cell.text, value)] == []


def test_the_tables_of_results_are_marked() -> None:
    count = {page.name: len(list(cells(page.read_text("utf-8")))) for page in PAGES}
    of_model = sum(1 for page in PAGES for _ in real_cells(page.read_text("utf-8")))
    assert of_model == 25 + 28 + 2 * 12  # README 5 x 5; results 4 measures x 7 columns, twice 3 x 4
    assert {name: number for name, number in count.items() if number} == {
        "ablations.md": 110,  # 8 settings x 3 ratios, 2 x 10, 2 x 5, 28 arms x 2
        "results.md": 144,  # 9 settings x 8 columns, twice
    }


@BY_PAGE
def test_quoted_figures_are_those_of_the_list(page: Path) -> None:
    text = page.read_text("utf-8")
    for mark in re.finditer(r"<!--([\w.]+)-->", text):
        assert text[: mark.start()].endswith(text_of(mark[1])), mark[1]
    for names, block in re.findall(r"<!-- below: (.*?) -->\n+```text\n(.*?)```", text, re.DOTALL):
        assert [name for name in names.split(", ") if text_of(name) not in block] == []


def test_every_figure_of_the_list_is_quoted() -> None:
    quoted = " ".join(re.findall(r"<!--(.*?)-->", "\n".join(page.read_text("utf-8") for page in PAGES)))
    assert [name for name in FIGURES if name not in re.findall(r"[\w.]+", quoted)] == []


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if isinstance(figure, dict)])
def test_figures_of_benchmarks_are_those_of_their_results(name: str) -> None:
    figure = FIGURES[name]
    if "real" in figure:
        assert figure["text"] == of_real(figure["real"], figure["measure"], figure["column"])
        return
    if "tokens" in figure:
        column = f"0.5 {figure['tokens']}/{figure['to']}"
        settings = [setting for setting in runs("") if setting[0] in ("rule", "stories", "lock")]
        found = [expected("", setting, column, "") for setting in settings if setting[1] in figure["hardness"]]
        values = [one.value for one in found if one and 0 < one.value < math.inf]
    else:
        checks = json.loads((RESULTS / f"{figure['benchmark']}.json").read_text("utf-8"))["checks"]
        values = [one["value"] * figure.get("factor", 1) for one in checks if one["name"].endswith(figure["check"])]
    words = re.findall(r"\d+(?:\.\d+)?", figure["text"])
    assert words == [shown(value, words[0]) for value in (min(values), max(values))][: len(words)]
    assert len(words) == 2 or len(values) == 1
