"""TensorBoard, W&B (offline) and MLflow (files): what each one has of a run, after a resume too."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from core.config import Config
from core.errors import ConfigError
from core.load import parse_config
from core.run_directory import RunDirectory
from monitor.report import draw_curves
from monitor.run_files import RunFiles
from monitor.trackers import Tracker, check_trackers, open_trackers
from tests.trainer.examples import iteration
from trainer.metrics import JsonlSink

PASS = {"1": {"mean": 0.125, "low": 0.0, "high": 0.5}, "4": {"mean": 0.5, "low": 0.25, "high": 0.75}}
EVALUATION = {
    "iteration": 2,
    "problems": 4,
    "success": 0.5,
    "low": 0.25,
    "high": 0.75,
    "pass": {},
    "levels": [{"level": "easy|1", "problems": 2, "success": 1.0, "low": 1.0, "high": 1.0, "pass": {}}],
    "sources": [],
    "sets": [
        {"set": "exam", "problems": 2, "success": 0.25, "low": 0.0, "high": 1.0, "pass": PASS}
        | {"truncated": 0.0, "left_out": 0, "judge_failures": 0}
    ],
}
SAMPLE = {"prompt": "1+1=", "continuation": "<2>\n#2", "reward": 1.0, "tokens": ["2"], "values": [0.5]}


def config_of(*sinks: str) -> Config:
    return parse_config({"monitor": {"sinks": list(sinks)}}, "test")


def a_run(root: Path, sink: str, numbers: range = range(1, 4), last: int = 0) -> RunDirectory:
    """A run whose iterations `numbers` are given to a tracker, with an evaluation after the second and samples of the
    third."""
    run = RunDirectory.create(root, "mine" if not last else "", "demo") if not last else RunDirectory(root / "mine")
    lines = {number: json.dumps({**EVALUATION, "iteration": number}) + "\n" for number in (0, 2)}
    run.evaluations.write_text("".join(line for number, line in lines.items() if last and number <= last))
    (run.samples / "000003.jsonl").write_text(json.dumps(SAMPLE) + "\n")
    with closing(JsonlSink(run.metrics)) as file:
        file.write(iteration(1))
    draw_curves(RunFiles(run, config_of(sink), [iteration(1)], []))
    (tracker,) = open_trackers(config_of(sink), run, last)
    run.evaluations.write_text("".join(lines.values()))
    for number in numbers:
        tracker.write(iteration(number))
    tracker.close()
    return run


def test_a_tracker_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    check_trackers(config_of("tensorboard", "wandb", "mlflow"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"monitor\.sinks: wandb .*sinks\.txt"):
        check_trackers(config_of("wandb"))
    with pytest.raises(ConfigError, match=r"monitor\.sinks\.0 = 'wandbb': .*wandb, mlflow"):
        config_of("wandbb")
    with pytest.raises(ConfigError, match=r"monitor\.sinks 'math:pi': .*monitor\.trackers\.Tracker"):
        check_trackers(config_of("math:pi"))


def events(run: RunDirectory) -> EventAccumulator:
    found = EventAccumulator(str(run.tensorboard))
    found.Reload()
    return found


def test_tensorboard_has_everything(tmp_path: Path) -> None:
    found = events(a_run(tmp_path, "tensorboard"))

    def scalars(tag: str) -> dict[int, float]:
        return {event.step: event.value for event in found.Scalars(tag)}

    assert scalars("success/root_success") == pytest.approx({1: 0.26, 2: 0.27, 3: 0.28})
    assert scalars("success/replay_success") == {2: 0.5, 3: 0.5}  # NaN in the first: left out
    assert scalars("seconds/update_seconds") == {1: 2.0, 2: 2.0, 3: 2.0}
    assert scalars("evaluation/all") == {0: 0.5, 2: 0.5}
    assert scalars("evaluation/easy|1") == {0: 1.0, 2: 1.0}
    tags = ("evaluation/exam", "evaluation/exam_avg@4", "evaluation/exam_pass@4")
    assert [scalars(tag)[2] for tag in tags] == [0.25, 0.125, 0.5]
    (samples,) = found.Tensors("samples/text_summary")
    text = samples.tensor_proto.string_val[0].decode()
    assert text.splitlines() == ["|prompt|continuation|reward|", "|---|---|---|", "|1+1=|&lt;2&gt;<br>#2|1.0|"]
    table = found.Tensors("evaluation/text_summary")[-1].tensor_proto.string_val[0].decode().splitlines()
    assert table[0] == "|set|problems|success|low|high|samples|average|average_low|average_high|any|"
    assert table[2:] == [
        "|all|4|0.5|0.25|0.75|0|||||",
        "|easy\\|1|2|1.0|1.0|1.0|0|||||",
        "|exam|2|0.25|0.0|1.0|4|0.125|0.0|0.5|0.5|",
    ]
    assert "  sinks:\n  - tensorboard" in found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert len(found.Images("curves")) == 1


def test_tensorboard_purges_what_a_resume_repeats(tmp_path: Path) -> None:
    a_run(tmp_path, "tensorboard")
    found = events(a_run(tmp_path, "tensorboard", range(2, 4), last=1))
    steps: dict[int, list[float]] = defaultdict(list)
    for event in found.Scalars("success/reward"):
        steps[event.step].append(event.value)
    assert {step: len(values) for step, values in steps.items()} == {1: 1, 2: 1, 3: 1}


def test_tensorboard_purges_a_run_that_begins_again(tmp_path: Path) -> None:
    """A learner that is lost before the first checkpoint."""
    run = a_run(tmp_path, "tensorboard")
    (tracker,) = open_trackers(config_of("tensorboard"), run, 0)
    tracker.write(iteration(1))
    tracker.close()
    assert [event.step for event in events(run).Scalars("success/reward")] == [1]


class Away(Tracker):
    """A server that is away in iterations 2 and 3, and at the end."""

    seen: ClassVar[list[int]] = []

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        if step in (2, 3):
            raise ConnectionError("the server is away")
        self.seen.append(step)

    def close(self) -> None:
        raise ConnectionError("the server is away")


def test_a_tracker_that_fails_costs_its_own_numbers_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    (tracker,) = open_trackers(config_of("tests.monitor.test_trackers:Away"), run, 0)
    for number in range(1, 5):
        tracker.write(iteration(number))
    tracker.close()
    assert Away.seen == [1, 4]
    line = "monitor.sinks: Away has failed (the server is away); the run goes on, and its own files have what is"
    assert [told.startswith(line) for told in capsys.readouterr().out.splitlines()] == [True, True]  # 2, and the end


def test_an_evaluation_that_a_resume_makes_up_for_is_shown_though_no_iteration_follows(tmp_path: Path) -> None:
    a_run(tmp_path, "tensorboard", range(1, 2), last=0)
    run = RunDirectory(tmp_path / "mine")
    run.evaluations.write_text(json.dumps({**EVALUATION, "iteration": 0}) + "\n")
    (tracker,) = open_trackers(config_of("tensorboard"), run, 3)
    with run.evaluations.open("a") as file:
        file.write(json.dumps({**EVALUATION, "iteration": 3}) + "\n")
    tracker.close()
    assert [event.step for event in events(run).Scalars("evaluation/all")][-1] == 3


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format after 7 bytes, blocks of 32 KiB of (checksum, size, type,
    data)."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the end of a block is padding
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield Record.FromString(whole)
            whole = b""


def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    run = a_run(tmp_path, "wandb")
    wandb.teardown()  # as at the end of the process: W&B's service writes its files
    (file,) = run.path.glob("wandb/offline-run-*/run-*.wandb")
    history, config = list[dict[str, str]](), dict[str, Any]()
    for record in wandb_records(file):
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        history.append({item.key or ".".join(item.nested_key): item.value_json for item in record.history.item})
    numbers = [line for line in history if "success/root_success" in line]
    assert [json.loads(line["iteration"]) for line in numbers] == [1, 2, 3]
    assert [json.loads(line["success/root_success"]) for line in numbers] == pytest.approx([0.26, 0.27, 0.28])
    assert [json.loads(line["iteration"]) for line in history if "evaluation/all" in line] == [0, 2]
    assert config["monitor"]["sinks"] == ["wandb"]
    (table,) = run.path.glob("wandb/offline-run-*/files/media/table/samples*.json")
    assert json.loads(table.read_text()) == {
        "columns": ["prompt", "continuation", "reward"],
        "data": [["1+1=", "<2>\n#2", 1.0]],
    }
    assert len(list(run.path.glob("wandb/offline-run-*/files/media/images/curves*.png"))) == 1
    before = run.trackers.read_text()
    a_run(tmp_path, "wandb", range(3, 4), last=2)
    assert run.trackers.read_text() == before  # the same run of W&B


def test_mlflow_keeps_a_run_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    a_run(tmp_path, "mlflow")
    run = a_run(tmp_path, "mlflow", range(3, 4), last=2)  # resumed: the same run of MLflow
    from mlflow import MlflowClient

    client = MlflowClient((run.path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("retrospect")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("mine", "FINISHED")
    assert found.data.params["rollout.starts"] == "64"
    history = client.get_metric_history(found.info.run_id, "success/root_success")
    assert {one.step: one.value for one in history} == pytest.approx({1: 0.26, 2: 0.27, 3: 0.28})
    assert {one.step for one in client.get_metric_history(found.info.run_id, "evaluation/easy_1")} == {0, 2}
    folder = run.path.joinpath("mlruns", found.info.experiment_id, found.info.run_id, "artifacts")
    assert json.loads((folder / "samples" / "000003.json").read_text())["data"] == [["1+1=", "<2>\n#2", 1.0]]
    assert (folder / "curves.png").stat().st_size > 0


def test_a_number_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    (tracker,) = open_trackers(config_of("tensorboard"), run, 0)
    tracker.write(replace(iteration(1), reward=float("inf")))
    tracker.close()
    assert "success/reward" not in events(run).Tags()["scalars"]
