"""metrics.jsonl and TensorBoard: what is written, after a kill and a resume too."""

import json
import math
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monitor.sinks import JsonlSink, TensorBoardSink, read_metrics
from tests.trainer.examples import iteration
from trainer.metrics import SourceMetrics, metric_infos


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
    metrics = replace(iteration(1), sources={"gsm8k": source, "math": replace(source, starts=5.0)})
    for sink in (JsonlSink(tmp_path / "metrics.jsonl"), TensorBoardSink(tmp_path / "tensorboard")):
        sink.write(metrics)
        sink.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["sources/gsm8k/root_success"], line["sources/math/starts"]) == (0.25, 5)
    assert repr(read_metrics(tmp_path / "metrics.jsonl")) == repr([metrics])
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Scalars("sources/math/starts")[0].value == 5
    assert "sources/gsm8k/replay_success" not in events.Tags()["scalars"]  # NaN


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


def scalars(directory: Path, tag: str) -> dict[int, float]:
    events = EventAccumulator(str(directory))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


def test_tensorboard_has_each_number_at_its_iteration(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, config="run:\n  seed: 0\n")
    for number in (1, 2, 3):
        sink.write(iteration(number))
    sink.close()
    assert scalars(tmp_path, "success/root_success") == pytest.approx({1: 0.26, 2: 0.27, 3: 0.28})
    assert scalars(tmp_path, "success/replay_success") == {2: 0.5, 3: 0.5}  # NaN in the first: left out
    assert scalars(tmp_path, "seconds/update_seconds") == {1: 2.0, 2: 2.0, 3: 2.0}


def test_tensorboard_purges_what_a_resume_repeats(tmp_path: Path) -> None:
    steps: dict[int, list[float]] = defaultdict(list)
    first = TensorBoardSink(tmp_path / "run")
    for number in (1, 2, 3):
        first.write(iteration(number))
    first.close()
    second = TensorBoardSink(tmp_path / "run", last=1)
    second.write(iteration(2))
    second.close()
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    for event in events.Scalars("success/reward"):
        steps[event.step].append(event.value)
    assert {step: len(values) for step, values in steps.items()} == {1: 1, 2: 1}
    assert not math.isnan(steps[2][0])
