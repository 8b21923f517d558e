"""report.html: self-contained, everything escaped, runs of one recipe are means over seeds, and what differs is
named."""

import json
import math
import re
from contextlib import closing
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from core.config import Config
from core.load import dump_config, override
from core.run_directory import RunDirectory
from monitor.charts import COLOURS, MOST_POINTS, SOFT, Chart, as_svg, histogram, line_chart, stacked_bars
from monitor.page import groups, over_seeds, write_page
from monitor.run_files import read_run
from monitor.store_view import open_store
from replay.store.server import ShardServer
from tests.trainer.examples import iteration
from trainer.metrics import JsonlSink

SAMPLE = {
    "problem": "p<1>",
    "replayed": True,
    "prompt": "1+1=<b>\n",
    "prefix": "a=2\n",
    "continuation": "#2",
    "finish": "STOP",
    "reward": 1.0,
    "correct": True,
    "detail": "",
    "tokens": ["#", "2"],
    "values": [0.25, 0.75],
}
HALF = {"problems": 2, "success": 0.5, "low": 0.0, "high": 1.0, "pass": {}}
PASS = {"1": {"mean": 0.25, "low": 0.125, "high": 0.375}, "4": {"mean": 0.75, "low": 0.5, "high": 1.0}}
GROUPS = {
    "levels": [HALF | {"level": "hard"}],
    "sources": [],
    "sets": [HALF | {"set": "exam", "pass": PASS, "truncated": 0.0, "left_out": 0, "judge_failures": 0}],
}


def a_run(root: Path, name: str, *options: str, lift: float = 0.0) -> RunDirectory:
    run = RunDirectory.create(root, name, "demo")
    run.config.write_text(dump_config(override(Config(), ["--run.name", name, *options])), encoding="utf-8")
    with closing(JsonlSink(run.metrics)) as sink:
        for number in (1, 2, 3):
            sink.write(replace(iteration(number), root_success=number / 10 + lift))
    lines = [HALF | {"iteration": at, "success": at / 4} | GROUPS for at in (0, 2)]
    run.evaluations.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.responses.mkdir()
    for at, response in ((0, "3"), (2, "<i>2")):
        row = {"problem": "p1", "kind": "greedy", "prompt": "1+1=?", "response": response, "correct": at == 2}
        (run.responses / f"00000{at}.jsonl").write_text(json.dumps(row) + "\n")
    (run.samples / "000003.jsonl").write_text(json.dumps(SAMPLE) + "\n")
    run.log.write_text("2026 WARNING retrospect.pool: <restarted> actor 1\n2026 INFO retrospect: fine\n")
    run.versions.write_text(json.dumps([{"started": "2026-11-22", "python": "3.11.7"}]))
    return run


class Page(HTMLParser):
    """Text and tags of a page; every tag that must be closed is."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.found, self.text, self.open = list[tuple[str, dict[str, str | None]]](), "", list[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def tags(self, name: str, kind: str = "") -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.found if tag == name and kind in (attrs.get("class") or "")]


def test_a_store_that_holds_nothing_yet_has_no_section(tmp_path: Path) -> None:
    run = a_run(tmp_path, "mine")
    ShardServer(0, Config().replay, 4, run.replay)
    run.tokenizer.mkdir()
    Tokenizer(WordLevel({"a": 0})).save(str(run.tokenizer / "tokenizer.json"))
    assert open_store(run).table.num_rows == 0
    write_page([read_run(run)], run.report)
    assert "Depth of the states" not in Page(run.report).text


def test_the_page_of_a_run_needs_nothing_else_and_escapes_what_it_shows(tmp_path: Path) -> None:
    run = a_run(tmp_path, "mine")
    write_page([read_run(run)], run.report)
    page = Page(run.report)
    assert page.open == []
    assert not page.tags("script")
    assert not page.tags("link")
    assert not page.tags("img")
    assert all(str(attrs["href"]).startswith("#") for attrs in page.tags("a") if attrs.get("href"))
    assert not re.search(r"url\((?!#)", run.report.read_text())
    for text in (
        "3 of 40, unfinished",
        "0.0% → 50.0%",
        "39,000",
        "<restarted> actor 1",
        "python 3.11.7",
        "hard",
        "avg@4 25.0% (12.5% to 37.5%), pass@4 75.0%",
        "✗ 3",
        "✓ <i>2",
    ):
        assert text in page.text
    assert "fine" not in page.text
    (sample,) = page.tags("details", "sample")
    assert sample["class"] == "sample replayed right"
    assert [attrs["title"] for attrs in page.tags("span") if "title" in attrs] == ["V = 0.250", "V = 0.750"]
    assert "1+1=<b>\na=2\n#2" in page.text  # prompt, marked prefix, continuation
    assert len(page.tags("mark")) == 2  # the legend, and the prefix


def test_runs_that_differ_only_in_their_seed_are_one_group(tmp_path: Path) -> None:
    uniform = ("--replay.ranking", "uniform")  # the second one began a day later
    seeds = [(*uniform, "--run.seed", "0"), (*uniform, "--run.seed", "1", "--model.template_date", "2026-11-02")]
    runs = [read_run(a_run(tmp_path, f"u{n}", *options, lift=n / 10)) for n, options in enumerate(seeds)]
    runs.append(read_run(a_run(tmp_path, "v", "--replay.ranking", "value")))
    found = groups(runs)
    assert {label: len(members) for label, members in found.items()} == {
        "ranking uniform (2 seeds)": 2,
        "ranking value": 1,
    }
    write_page(runs, tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert page.open == []
    assert re.search(r"replay\.rankinguniformuniformvalue", page.text)  # the table of what differs
    assert "run.seed010" in page.text
    tips = re.findall(r"ranking uniform \(2 seeds\), iteration 1: ([^<]*?)\)", page.text)
    # root success 0.1 and 0.2: mean 0.15, deviation 0.0707, half width 12.706 * 0.0707 / sqrt(2) = 0.635
    assert "0.15 (-0.485 to 0.785" in tips


def test_a_second_run_of_a_seed_is_of_another_group(tmp_path: Path) -> None:
    runs = [read_run(a_run(tmp_path, name)) for name in ("one", "again")]
    assert {label: len(members) for label, members in groups(runs).items()} == {"one": 1, "again": 1}


def test_what_cannot_be_read_is_said_or_left_out(tmp_path: Path) -> None:
    run = a_run(tmp_path, "mine")
    (run.samples / "000001.jsonl").write_text('{"start": 3}\n' + json.dumps(SAMPLE | {"values": ["a", "b"]}) + "\n")
    (run.samples / "000001 (copy).jsonl").write_text("{}\n")
    write_page([read_run(run)], run.report)
    page = Page(run.report)
    assert len(page.tags("details", "sample")) == 1
    assert "no replay store here" in page.text


def test_counters_go_on_over_a_resume(tmp_path: Path) -> None:
    run = a_run(tmp_path, "mine")
    item = read_run(run)
    counted = [replace(one, restarts=count) for one, count in zip(item.metrics, (2, 2, 1), strict=True)]
    write_page([replace(item, metrics=counted)], run.report)
    assert "3 restarts of rollout actors" in Page(run.report).text


def test_an_interval_over_seeds_is_students() -> None:
    ((x, mean, low, high),) = over_seeds([{5: 0.2}, {5: 0.4}, {5: 0.6}])
    # mean 0.4, deviation 0.2, half width 4.303 * 0.2 / sqrt(3) = 0.4969
    assert [x, mean, low, high] == pytest.approx([5, 0.4, -0.0969, 0.8969], abs=1e-4)
    (alone,) = over_seeds([{1: 0.5}])
    assert alone[:2] == (1, 0.5)
    assert math.isnan(alone[2])


def tips(chart: Chart) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", as_svg(chart))


def test_a_curve_has_a_tooltip_at_every_point_and_the_colours_of_the_page() -> None:
    chart = line_chart("t", "u", {"<a>": [(0, 0.0, 0.0, 0.5), (10, 1.0, 0.5, 1.0)], "none": []}, (0, 1))
    assert list(chart.labels) == ["<a>"]
    assert tips(chart) == ["&lt;a&gt;, iteration 0: 0 (0 to 0.5)", "&lt;a&gt;, iteration 10: 1 (0.5 to 1)"]
    svg = as_svg(chart)
    assert "var(--c0)" in svg
    assert not any(colour in svg for colour in (*COLOURS, SOFT))


def test_a_long_curve_is_averaged() -> None:
    nan = math.nan
    found = tips(line_chart("t", "u", {"a": [(x, float(x), nan, nan) for x in range(1, 301)]}))
    assert len(found) == MOST_POINTS  # 300 points in pairs
    assert found[0] == "a, iteration 1.5: 1.5"
    uneven = tips(line_chart("t", "u", {"a": [(x, float(x), nan, nan) for x in range(1, 271)]}))
    assert (len(uneven), uneven[-1]) == (135, "a, iteration 269.5: 270")  # the end in pairs, too


def test_bars_and_histograms_count() -> None:
    assert tips(stacked_bars("t", "s", ["a", "b"], {1: [1.0, 3.0], 2: [0.0, 2.0]})) == [
        "a, iteration 1: 1 s",
        "a, iteration 2: 0 s",
        "b, iteration 1: 3 s",
        "b, iteration 2: 2 s",
    ]
    assert [tip.rpartition(": ")[2] for tip in tips(histogram("t", "tokens", [1, 1, 2, 4]))] == ["2", "1", "0", "1"]
