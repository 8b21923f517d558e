"""metrics.jsonl: what is written, after a kill and a resume too."""

import json
import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.trainer.examples import iteration
from trainer.metrics import JsonlSink, SourceMetrics, metric_infos, read_metrics


def write(path: Path, numbers: range, *, last: int = 0) -> None:
    with closing(JsonlSink(path, last=last)) as sink:
        for number in numbers:
            sink.write(iteration(number))


def test_a_line_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(iteration(1))
    line = json.loads((tmp_path / "metrics.jsonl").read_text())  # not closed yet
    assert line["iteration"] == 1
    assert line["replay_success"] is None  # NaN
    assert list(line) == [info.name for info in metric_infos()]
    sink.close()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 4))
    found = read_metrics(path)
    assert [repr(metrics) for metrics in found] == [repr(iteration(number)) for number in (1, 2, 3)]


def test_the_data_sets_of_a_mixture_are_written_and_read(tmp_path: Path) -> None:
    source = SourceMetrics(starts=3.0, root_success=0.25, replay_success=math.nan, reward=0.5, evaluation_success=1.0)
    sources = {"gsm8k": source, "math": replace(source, starts=5.0)}
    metrics = replace(iteration(1), sources=sources, rewards={"format": 0.75, "127.0.0.1:80": math.nan})
    with closing(JsonlSink(tmp_path / "metrics.jsonl")) as sink:
        sink.write(metrics)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["sources/gsm8k/root_success"], line["sources/math/starts"]) == (0.25, 5)
    assert (line["rewards/format"], line["rewards/127.0.0.1:80"]) == (0.75, None)
    assert repr(read_metrics(tmp_path / "metrics.jsonl")) == repr([metrics])


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 8))
    write(path, range(6, 9), last=5)
    assert [metrics.iteration for metrics in read_metrics(path)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(path.read_text().splitlines()) == 8  # dropped, not hidden


def test_a_torn_line_of_a_killed_run_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 4))
    whole = path.read_text()
    path.write_text(whole[:-40])  # the third line is cut in the middle
    assert [metrics.iteration for metrics in read_metrics(path)] == [1, 2]
    write(path, range(3, 5), last=2)
    assert [metrics.iteration for metrics in read_metrics(path)] == [1, 2, 3, 4]


def test_a_new_run_begins_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 4))
    write(path, range(1, 2))
    assert [metrics.iteration for metrics in read_metrics(path)] == [1]
