"""The summary and the picture of a run."""

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

from core.config import Config, RunConfig
from core.errors import CheckpointError
from core.load import dump_config
from core.run_directory import RunDirectory
from monitor.report import changes, draw_curves, summary
from monitor.run_files import RunFiles, read_run
from tests.trainer.examples import iteration
from trainer.metrics import IterationMetrics, JsonlSink, read_metrics


def a_run(path: Path, *metrics: IterationMetrics, planned: int = 40) -> RunFiles:
    evaluations = [{"iteration": 0, "success": 0.125}] if len(metrics) == 2 else []
    return RunFiles(RunDirectory(path), Config(run=RunConfig(iterations=planned)), list(metrics), evaluations)


def test_changes_compare_the_ends_of_a_run(tmp_path: Path) -> None:
    found = changes(a_run(tmp_path, *map(iteration, range(1, 21))))
    # a tenth of 20 iterations is 2: (0.26 + 0.27) / 2 and (0.44 + 0.45) / 2
    assert found["success, training, from root"] == pytest.approx((0.265, 0.445))
    # evaluated in iterations 2, 4, ..., 20: 0.25 + 2 / 50 and 0.25 + 20 / 50
    assert found["success, held-out problems"] == pytest.approx((0.29, 0.65))


def test_held_out_success_counts_from_before_the_training(tmp_path: Path) -> None:
    text = summary(a_run(tmp_path, iteration(1), iteration(2)))
    assert "success, held-out problems      0.125 ->  0.290  (+0.165)" in text


def test_what_was_evaluated_once_is_no_change(tmp_path: Path) -> None:
    """A run that is interrupted before its second evaluation."""
    item = a_run(tmp_path, iteration(1), iteration(3))  # neither is evaluated
    assert "success, held-out problems" not in changes(item)
    assert "success, training, from root" in changes(item)


def test_answers_stand_side_by_side(tmp_path: Path) -> None:
    item = a_run(tmp_path, iteration(1), iteration(2))
    item.evaluations[:] = [
        {"iteration": at, "success": 0.125, "low": 0.0625, "high": 0.25, "problems": 3} for at in (0, 2)
    ]
    item.run.responses.mkdir()
    for at, answer in ((0, "wide " + "x" * 60), (2, "one\n\x1b[2Jtwo")):
        kinds = (("a", "sampled", "never shown"), ("a", "greedy", answer), (f"only {at}", "greedy", "no pair"))
        rows = [
            {"problem": name, "kind": kind, "prompt": f"What is {name}?", "response": text, "correct": at == 2}
            for name, kind, text in kinds
        ]
        (item.run.responses / f"00000{at}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = summary(item)
    assert "(+0.165)  95 % intervals 0.062 to 0.250 and 0.062 to 0.250, 3 problems" in text
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "questions" in line)
    assert re.split("  +", lines[at].strip()) == [
        "the first held-out questions",
        "before training",
        "after iteration 2",
    ]
    shown = [re.split("  +", line.strip()) for line in lines[at + 1 : lines.index("", at + 2)]]
    assert shown[1][0] == "What is a?"
    assert shown[1][2] == "one"
    assert "?[2Jtwo" in shown[2]  # no control code reaches the terminal
    assert shown[3][-1] == "(right)"
    assert shown[4] == ["(wrong)"]
    assert max(map(len, lines[at : at + 6])) <= 102
    assert not {"never shown", "no pair"} & {word for parts in shown for word in parts}


def test_what_never_was_has_no_line(tmp_path: Path) -> None:
    found = changes(a_run(tmp_path, iteration(1)))
    assert list(found) == ["success, training, from root", "reward"]  # neither replayed nor evaluated


def test_the_summary_says_what_it_cost_and_where_it_is(tmp_path: Path) -> None:
    item = a_run(tmp_path / "mine", iteration(1), replace(iteration(2), logprob_gap=3e-5), planned=5)
    text = summary(item)
    assert "Run mine: 2 iterations of 5 (unfinished)" in text
    # 2 x 6.5 s, 2 x 13,000 tokens
    assert "0:13 of training, 26,000 tokens generated (2,000 tokens/s without evaluation)" in text
    assert (
        "engines and learner differ by at most 3.0e-05 nats per token (mean over the probe after a broadcast)" in text
    )
    assert f"python launch.py train --resume {item.run.path}" in text
    assert "not updated" not in text
    assert str(item.run.curves) in text
    assert "driver 0.8, learner 2.5\n" in text  # GiB
    finished = a_run(tmp_path / "mine", iteration(1), iteration(2), planned=2)
    assert "2 iterations of 2 (unfinished)" in summary(finished)  # its last evaluation is missing
    finished.evaluations.append({"iteration": 2, "success": 0.29, "low": 0.2, "high": 0.4, "problems": 3})
    finished.evaluations[0] |= {"low": 0.1, "high": 0.2}
    latest = finished.run.checkpoints / "latest"
    latest.parent.mkdir(parents=True)
    latest.write_text("000001")
    assert "2 iterations of 2 (unfinished)" in summary(finished)  # its last checkpoint could not be written
    latest.write_text("000002")
    finished.run.policy.mkdir()
    assert "unfinished" not in summary(finished)
    latest.unlink()  # to free space
    text = summary(finished)
    assert "unfinished" not in text
    assert "--resume" not in text
    assert str(finished.run.policy) in text


def test_the_policy_of_an_unfinished_run_is_that_of_its_last_checkpoint(tmp_path: Path) -> None:
    item = a_run(tmp_path, iteration(1))
    item.run.policy.mkdir()  # of before the run got more iterations
    assert "  policy  " not in summary(item)
    item.run.checkpoints.mkdir()
    (item.run.checkpoints / "latest").write_text("000001")
    assert f"policy    {item.run.checkpoints / '000001' / 'policy'}\n" in summary(item)


def test_the_summary_counts_updates_that_did_not_happen(tmp_path: Path) -> None:
    item = a_run(tmp_path, *(replace(iteration(number), policy_steps=0) for number in (1, 2)), iteration(3))
    assert "not updated in 2 of 3 iterations" in summary(item)
    warming_up = item.config.learner.model_copy(update={"critic_warmup": 2})
    assert "not updated" not in summary(replace(item, config=item.config.model_copy(update={"learner": warming_up})))


@pytest.mark.parametrize("length", [1, 12])
def test_the_picture_is_drawn_for_any_length(tmp_path: Path, length: int) -> None:
    run = RunDirectory(tmp_path)
    run.config.write_text(dump_config(Config()))
    line = {"iteration": 0, "success": 0.25, "low": 0.0, "high": 0.5, "problems": 4, "pass": {}, "levels": []}
    run.evaluations.write_text('{"iter\n' + json.dumps(line | {"sources": []}) + "\n")  # the first line is torn
    with closing(JsonlSink(run.metrics)) as sink:
        for number in range(1, length + 1):
            sink.write(iteration(number))
    files = {*tmp_path.iterdir()}
    draw_curves(read_run(run))
    pixels = imread(run.curves)
    assert pixels.shape[0] > 800
    assert pixels.shape[1] > 1500
    assert 0.001 < (pixels[..., :3].min(axis=2) < 0.5).mean() < 0.5  # neither blank nor a black box
    assert {*tmp_path.iterdir()} - files == {run.curves}


def test_a_run_without_iterations_is_one_clear_line(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    with pytest.raises(CheckpointError, match="iteration"):
        read_run(run)


def test_a_run_of_supervised_training_is_one_clear_line(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "taught", "sft")
    run.metrics.write_text('{"step": 10, "loss": 2.0}\n{"step": 20, "lo')
    with pytest.raises(CheckpointError, match=r"is a run of supervised training; its model is in policy, its numbers"):
        read_run(run)


def test_lines_that_are_no_iterations_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{}\n{"iteration": 1}\n{"iteration": 1e999}\n')
    assert [one.iteration for one in read_metrics(path)] == [1]
