"""Which model and configuration a command works with, found without any engine."""

import json
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import launch
from commands import evaluate as evaluation
from commands import train as commands
from commands.evaluate import check_unseen
from commands.options import COMMANDS, overview
from core.config import Config, TaskConfig
from core.errors import CheckpointError, ConfigError, DataError, StoreError
from core.interruption import INTERRUPTED
from core.load import FIELDS, dump_config, load_config, override
from core.run_directory import RunDirectory
from replay.store.snapshot import FORMAT, MANIFEST
from tasks.kinds import check_trained, task_items
from tasks.sampling import CURSOR, PROBLEMS
from tests.trainer.examples import iteration
from tests.trainer.model.test_files import text_recipe
from trainer.checkpoint import RunProgress, write_digests
from trainer.metrics import JsonlSink
from trainer.model.files import model_of, run_of


@pytest.fixture(autouse=True)
def _signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler for SIGTERM is the test runner's business."""
    monkeypatch.setattr("launch.signal.signal", lambda *_: None)


def recorder(calls: list[Any]) -> Callable[..., int]:
    """A command that keeps its arguments and succeeds."""

    def record(*arguments: Any) -> int:
        calls.append(arguments)
        return 0

    return record


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with one checkpoint, of 7 iterations."""
    run = RunDirectory.create(tmp_path, "mine", "demo")
    run.config.write_text(dump_config(override(Config(), ["--run.iterations", "7"])))
    policy = run.checkpoints / "000010" / "policy"
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")
    (policy.parent / "progress.json").write_text('{"iteration": 10, "total_tokens": 0}')
    (run.checkpoints / "latest").write_text("000010")
    return run


def test_the_run_of_a_checkpoint_and_its_policy(run: RunDirectory, tmp_path: Path) -> None:
    folder = run.checkpoints / "000010"
    for target in (run.path, folder, folder / "policy"):
        assert getattr(run_of(target), "path", None) == run.path
        assert model_of(target) == str(folder / "policy")
    assert run_of(tmp_path) is None
    assert run_of(Path("someone/model")) is None
    assert model_of(Path("someone/model")) == "someone/model"
    with pytest.raises(CheckpointError, match="run"):
        model_of(run.checkpoints)
    run.policy.mkdir()
    assert model_of(run.path) == str(folder / "policy")  # of a run that was extended policy/ is older
    (folder / "policy" / "config.json").unlink()
    (folder / "policy").rmdir()  # as in a run of sft
    assert model_of(run.path) == str(run.policy)


def test_evaluate_takes_the_configuration_of_the_run_and_the_options(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Config, str, str, Path | None, bool]] = []
    monkeypatch.setattr(evaluation, "evaluate_models", recorder(asked))
    policy = str(run.checkpoints / "000010" / "policy")
    assert launch.main(["evaluate", policy, "--evaluation.samples", "8"]) == 0
    config, target, against, responses, local = asked.pop()
    assert (config.run.iterations, config.evaluation.samples, target) == (7, 8, policy)
    assert (against, responses, local) == ("", None, False)
    options = ["--checkpoint", policy, "--task", "sums", "--against", "b", "--responses", "r.parquet"]
    assert launch.main(["evaluate", *options]) == 0
    config, target, against, responses, local = asked.pop()
    assert (config.run.iterations, config.task.name, target) == (7, "sums", policy)
    assert (against, responses) == ("b", Path("r.parquet"))
    starter = ["evaluate", "--config", "configs/arithmetic.yaml"]
    assert launch.main([*starter, "--evaluation.samples", "8"]) == 0  # 8 is no checkpoint
    config, target, *_ = asked.pop()
    assert (config, target) == (override(load_config(starter[-1]), ["--evaluation.samples=8"]), "")
    assert launch.main([*starter, "--local"]) == 0
    assert asked.pop()[-1]  # locally
    recipe = tmp_path / "other.yaml"
    recipe.write_text("run:\n  iterations: 3\ntask:\n  name: sums\n")
    assert launch.main(["evaluate", policy, "--config", str(recipe)]) == 0
    assert asked.pop()[0].run.iterations == 3


def test_evaluate_takes_an_export_and_all_rows_of_a_file(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(evaluation, "evaluate_models", recorder(asked))
    export, rows = tmp_path / "export", tmp_path / "rows.jsonl"
    export.mkdir()
    (export / "config.json").write_text("{}")
    (export / "config.yaml").write_text("task:\n  name: gsm8k\n  path: train.jsonl\n  columns: {solution: answer}\n")
    rows.write_text("".join(json.dumps({"question": f"{i}?", "answer": f"#### {i}"}) + "\n" for i in range(3)))
    assert model_of(export) == str(export)
    assert launch.main(["evaluate", str(export)]) == 0
    assert asked.pop()[0].task.path == "train.jsonl"
    assert launch.main(["evaluate", str(export), "--task.path", str(rows)]) == 0
    task = asked.pop()[0].task
    assert len(task_items(task, 0).evaluation) == 3
    with pytest.raises(DataError, match=r"task\.path is empty"):
        check_trained(task)
    assert launch.main(["evaluate", str(export), "--task.path", str(rows), "--task.eval_problems", "2"]) == 0
    assert len(task_items(asked.pop()[0].task, 0).evaluation) == 2
    (export / "config.yaml").write_text("other: program\n")
    assert launch.main(["evaluate", str(export)]) == 2
    assert "task.name" in capsys.readouterr().err
    learnt = load_config(run.config).model_copy(update={"task": TaskConfig(name="gsm8k", path=str(rows))})
    run.config.write_text(dump_config(learnt))
    with pytest.raises(ConfigError, match="was trained on the rows"):
        check_unseen(TaskConfig(name="gsm8k", eval_path=f"{tmp_path}/./rows.jsonl"), str(run.path))


@pytest.mark.parametrize("form", [["--resume", "{}"], ["--resume={}"]])
def test_a_resumed_run_keeps_changed_fields(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(commands, "_open_session", lambda config, *_: nullcontext(config))
    monkeypatch.setattr(commands, "run_session", recorder(calls))
    monkeypatch.setattr(commands, "read_run", lambda _: None)
    monkeypatch.setattr(commands, "summary", lambda _: "")
    arguments = [*(part.format(run.path) for part in form), "--run.iterations", "12", "--learner.value-lr", "1e-5"]
    arguments += ["--algorithm.kl-coefficient", "0"]
    assert launch.main(["train", *arguments, "--local"]) == 0
    assert "warning: algorithm.kl_coefficient is 0 while states are replayed" in capsys.readouterr().out
    config, resumed, _ = calls.pop()
    assert config.run.iterations == 12
    assert load_config(run.config).run.iterations == 7  # until it goes on: a resume that fails changes nothing
    kept = override(config, ["--rollout.max_running", "99"])  # chosen automatically
    with commands._open_outputs(config, kept, run, True, (), 10):
        assert load_config(run.config) == kept
    assert resumed == run.checkpoints / "000010"


def test_a_resume_on_other_problems_ends_before_the_engines_start(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.build.opened", lambda *_, **__: pytest.fail("engines were started"))
    config = text_recipe(tmp_path, [{"question": f"{i}+0?", "answer": f"#### {i}"} for i in range(9)])
    fresh = run.checkpoints / "000010" / "sources" / "fresh"
    fresh.mkdir(parents=True)
    (fresh / CURSOR).write_text(json.dumps({PROBLEMS: "of other rows"}))
    before = sorted(run.path.iterdir())
    with (
        pytest.raises(CheckpointError, match="its training problems are not those of this run"),
        commands._open_session(config, run, run.checkpoints / "000010", True, ()),
    ):
        pass
    assert sorted(run.path.iterdir()) == before  # such as the list of its problems


def test_options_of_a_resume_by_uri_change_the_configuration_that_is_there(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`learner.offload` contradicts the default of `learner.zero_stage`, not that of this run."""
    run.config.write_text(dump_config(override(Config(), ["--run.iterations", "12", "--learner.zero_stage", "2"])))
    asked, calls = list[Any](), list[Any]()
    monkeypatch.setattr(commands, "download", lambda *given: asked.append(given) or run.path)  # type: ignore[func-returns-value]
    monkeypatch.setattr(commands, "_run", recorder(calls))
    commands.resume("s3://b/mine", ["--run.root", "/data", "--learner.offload=true"])
    assert asked == [("s3://b/mine", Path("/data"))]
    assert calls[0][0].learner.offload


def test_a_new_run_keeps_its_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_run", lambda *_: None)
    for given, kept in ((None, date.today()), (date(2024, 7, 26), date(2024, 7, 26))):
        config = Config.model_validate({"run": {"root": tmp_path}, "model": {"template_date": given}})
        assert load_config(commands.train(config, "demo").config).model.template_date == kept


def test_what_cannot_change_exists() -> None:
    assert set(FIELDS) >= commands.LASTING_FIELDS
    assert set(Config.model_fields) >= commands.LASTING_SECTIONS


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("task.problems", "5"),
        ("run.seed", "1"),
        ("learner.zero_stage", "2"),
        ("learner.lora_rank", "8"),
        ("learner.value_path", "'rm'"),
        ("replay.ranking", "value"),
    ],
)
def test_what_a_run_rests_on_cannot_change(run: RunDirectory, option: str, value: str) -> None:
    before = run.config.read_text()
    with pytest.raises(ConfigError, match=rf"--resume: {option} .*{value}"):
        commands.resume(str(run.path), [f"--{option}", value.strip("'")])
    assert run.config.read_text() == before


def test_a_response_that_has_no_room_for_stored_states_is_refused(run: RunDirectory) -> None:
    before = override(load_config(run.config), ["--rollout.max_response_tokens", "100", "--replay.ratio", "0.5"])
    lower = override(before, ["--rollout.max_response_tokens", "50"])
    with pytest.raises(ConfigError, match="100 in this run and cannot become 50: stored states"):
        commands.check_changes(before, lower)
    commands.check_changes(before, override(before, ["--rollout.max_response_tokens", "150"]))
    without = override(before, ["--replay.ratio", "0"])
    commands.check_changes(without, override(without, ["--rollout.max_response_tokens", "50"]))


def test_a_run_keeps_its_critic(run: RunDirectory) -> None:
    """Replay's ranking reads values, so there is one whatever the estimator; with neither there would be none."""
    with pytest.raises(ConfigError, match=r"'separate' .*'none' \(algorithm"):
        commands.resume(str(run.path), ["--algorithm.estimator", "rloo", "--replay.ratio", "0"])


def test_all_that_cannot_change_is_named_at_once(run: RunDirectory) -> None:
    options = ["--run.seed", "1", "--run.iterations", "9", "--replay.ranking", "value"]
    with pytest.raises(ConfigError, match=r"run\.seed .*replay\.ranking"):
        commands.resume(str(run.path), options)


def test_starts_in_flight_are_not_resumed_in_one_process(run: RunDirectory) -> None:
    folder = run.checkpoints / "000010"
    progress = RunProgress(10, 0, {"in_flight": [{}, {}]})
    (folder / "progress.json").write_text(json.dumps(asdict(progress)))
    with pytest.raises(ConfigError, match=r"--local: .*000010 has 2 starts"):
        commands.resume(str(run.path), ["--run.iterations", "12"], local=True)


def test_a_damaged_checkpoint_is_not_resumed(run: RunDirectory) -> None:
    """One flipped bit in a file of the learner: found before anything is read from it or started."""
    folder = run.checkpoints / "000010"
    (folder / "learner").mkdir()
    (folder / "learner" / "rank-0.pt").write_bytes(bytes(1000))
    write_digests(folder)
    (folder / "learner" / "rank-0.pt").write_bytes(bytes(499) + b"\x04" + bytes(500))
    before = run.config.read_text()
    with pytest.raises(CheckpointError, match=r"000010/learner/rank-0\.pt: damaged"):
        commands.resume(str(run.path), ["--run.iterations", "12"])
    (folder / "progress.json").write_text('{"iteration": 10, "cur')
    with pytest.raises(CheckpointError, match=r"000010/learner/rank-0\.pt: damaged"):
        commands.resume(str(run.path), ["--run.iterations", "12"])
    assert run.config.read_text() == before
    run.config.write_text("")
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        commands.resume(str(run.path), [])


def test_a_store_of_other_code_is_refused_before_anything_starts(run: RunDirectory) -> None:
    store = run.checkpoints / "000010" / "sources" / "replay"
    store.mkdir(parents=True)
    (store / MANIFEST).write_text(json.dumps({"format": FORMAT - 1}))
    with pytest.raises(StoreError, match=rf"{MANIFEST}: its format is {FORMAT - 1}, .* start a new run"):
        commands.resume(str(run.path), ["--run.iterations", "12"])


def test_every_command_of_the_table_can_be_loaded_and_is_in_the_overview() -> None:
    for name, command in COMMANDS.items():
        assert callable(command.load())
        assert f"python launch.py {name} " in overview()


def test_fewer_iterations_than_done_start_nothing(run: RunDirectory) -> None:
    before = run.config.read_text()
    with pytest.raises(ConfigError, match=r"mine .* 10 iterations.*run\.iterations = 9"):
        commands.resume(str(run.path), ["--run.iterations", "9"])
    assert run.config.read_text() == before


def test_a_finished_run_is_not_started_again(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(commands, "_run", recorder(started))
    folder = run.checkpoints / "000010"
    (folder / "policy" / "model.safetensors").write_text("weights")
    write_digests(folder)
    with closing(JsonlSink(run.metrics)) as sink:
        sink.write(iteration(10))
    options = ["--run.iterations", "10"]
    commands.resume(str(run.path), options)  # neither evaluated nor exported
    evaluation = {"iteration": 10, "success": 0.5}
    run.evaluations.write_text(json.dumps(evaluation) + "\n")
    commands.resume(str(run.path), options)
    run.policy.mkdir()
    (run.policy / "model.safetensors").write_text("older weights")
    commands.resume(str(run.path), options)
    assert len(started) == 3
    (run.policy / "model.safetensors").write_text("weights")
    commands.resume(str(run.path), options)
    assert len(started) == 3
    assert "raise run.iterations" in capsys.readouterr().out
    commands.resume(str(run.path), ["--run.iterations", "11"])
    assert len(started) == 4


def test_resume_refuses_a_recipe(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["train", "--resume", str(run.path), "--config", "configs/arithmetic.yaml"]) == 2
    assert "leave out --config" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "hint"), [("train", True), ("evaluate", False), ("check", False)])
def test_only_training_can_be_resumed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, hint: bool
) -> None:
    def stop(*_: Any, **__: Any) -> int:
        raise KeyboardInterrupt

    function = {"train": "train.train", "evaluate": "evaluate.evaluate_models", "check": "check.check_recipe"}[command]
    monkeypatch.setattr(f"commands.{function}", stop)
    assert launch.main([command, "--task.name", "arithmetic"]) == INTERRUPTED
    assert ("--resume RUN" in capsys.readouterr().err) == hint
