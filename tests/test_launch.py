"""The command line: every mistake is one line before anything starts, and status 2."""

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from core.config import Config
from core.load import FIELDS, dump_config, load_config
from core.run_directory import RunDirectory
from core.sections.meanings import MEANINGS, WITHOUT
from launch import main
from tests.trainer.examples import iteration
from trainer.metrics import JsonlSink

ROOT = Path(__file__).parents[1]
STARTER = ("--config", "configs/arithmetic.yaml")


def here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in this process: its imports take seconds."""
    on_terminate = signal.getsignal(signal.SIGTERM)
    try:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as errors:
            status = main(arguments)
    except SystemExit as ended:  # of --help
        status = int(ended.code or 0)
    finally:
        signal.signal(signal.SIGTERM, on_terminate)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())


def error_here(*arguments: str) -> str:
    """The one line that a mistake must give."""
    return the_error(here(*arguments))


def the_error(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2, result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


@pytest.mark.parametrize("command", ["train", "check"])
def test_help_is_short_and_explains_the_fields_of_a_section(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = here(command, "--help").stdout
    own = "--resume" if command == "train" else "--offline"
    for words in (
        own,
        "replay       ratio=0.25",
        "zero_stage=0",
    ):  # the schema's defaults: configs/arithmetic.yaml has others
        assert words in text
    assert text.count("\n") < 70
    assert not re.search("ratio=(?!0.0|0.25)", text)
    section = here(command, "--help", "replay").stdout
    assert re.search(
        r"--replay.ratio FLOAT Largest share [^()]* in \[0, 1\)\. [^()]*\(default: 0.25\)", " ".join(section.split())
    )
    assert "learner" not in section
    assert "the nearest is 'replay'" in error_here(command, "--help", "replya")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train --replay.ratoi 0.5", "--replay.ratio"),
        ("train --rollout.smaples 2", "--rollout.samples"),
        ("train --learning_rate 1", "--learner.policy_lr"),
        ("train --lr 1", "--learner.policy_lr"),
        ("train --critic-lr=1", "--learner.value_lr"),
        ("train --sft.learning-rate 1", "--sft.arguments"),
        ("sft --learning_rate 1", "--sft.arguments"),
        ("sft --lr 1", "--sft.arguments"),
        ("evaluate RUN --batch_size 1", "--rollout.starts"),
        ("check --algorithm.kl_coef 1", "--algorithm.kl_coefficient"),
        ("train --resum RUN", "--resume"),
    ],
)
def test_an_unknown_option_names_the_nearest_of_the_same_meaning(typed: str, meant: str) -> None:
    assert f"the nearest is '{meant}'" in error_here(*typed.split())


def test_other_names_of_a_field_name_one_that_exists() -> None:
    meanings = {name: words for name, words in MEANINGS.items() if not name.endswith(".arguments")}  # a mapping's keys
    words = [word for names in (*meanings.values(), *WITHOUT.values()) for word in names.split()]
    assert set(MEANINGS) <= set(FIELDS)
    assert len(words) == len(set(words))


def test_mistakes_are_answered_before_any_library_is_imported() -> None:
    heavy = "{'torch', 'ray', 'transformers', 'pyarrow', 'numpy'} & set(sys.modules)"
    for arguments in (["trian"], ["train", "--rollout.smaples", "3"], ["train", "--help"]):
        code = f"import sys, launch\ntry: launch.main({arguments})\nexcept SystemExit: pass\nprint('loaded', {heavy})"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.endswith("loaded set()\n")
    assert "the nearest is 'train'" in error_here("trian")


def test_what_is_no_option() -> None:
    assert "argument --replay.ratio: expected one argument" in error_here("train", "--replay.ratio")
    assert "unexpected argument 'demo.yaml'" in error_here("train", "demo.yaml")
    assert "not allowed with argument" in error_here("evaluate", "a", "--checkpoint", "b")


def test_evaluate_leaves_no_folder_behind_for_a_mistyped_target(tmp_path: Path) -> None:
    assert "runs/nope" in error_here("evaluate", "runs/nope", "--run.root", str(tmp_path / "made"))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("command", ["train", "check", "evaluate", "sft", "reward-model"])
def test_a_run_names_a_model_and_a_task(command: str, tmp_path: Path) -> None:
    """The defaults alone are a toy. A recipe that names neither is as good as none, rows need a judge, and a model
    alone or a task alone says what is missing."""
    (tmp_path / "c.yaml").write_text("replay:\n  ratio: 0.5\n")
    for options in ([], ["--config", str(tmp_path / "c.yaml")], ["--task.eval_problems", "5"]):
        line = error_here(command, *options, "--run.root", str(tmp_path))
        assert all(name in line for name in ("model.path", "task.name", "--config FILE"))
    for options in (["--task.path", "rows.jsonl"], [], ["--task.eval_problems", "5"]):
        assert "task.name" in error_here(command, "--model.path", "m", *options, "--run.root", str(tmp_path))
    for options in (["--task.name", "gsm8k"], ['--task.sources=[{"name": "sums"}]']):
        assert "model.path: name" in error_here(command, *options, "--run.root", str(tmp_path))


def test_unknown_key_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("replay:\n  ratoi: 0.5\n")
    assert "'replay.ratio'" in error_here("check", "--config", str(tmp_path / "c.yaml"))


def test_ratio_out_of_range() -> None:
    assert "replay.ratio" in error_here("check", "--replay.ratio", "1.0")


def test_batch_sizes_that_do_not_divide() -> None:
    assert "do not divide" in error_here("check", "--learner.minibatches", "7")


def test_a_template_without_the_question_is_found_before_the_starter_is_built() -> None:
    assert "task.template" in error_here("check", *STARTER, "--task.template", "Answer:")


def test_missing_data_file() -> None:
    assert "none.jsonl" in error_here("check", "--model.path=starter", "--task.name=gsm8k", "--task.path", "none.jsonl")


def test_empty_data(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty" in error_here(
        "check", "--model.path=starter", "--task.name=gsm8k", "--task.path", str(tmp_path / "empty.jsonl")
    )


def error_of_rows(path: Path) -> str:
    """What `check` says of rows with questions."""
    rows = ("--task.path", str(path), "--task.columns.prompt", "question")
    return error_here("check", "--model.path=starter", "--task.name=gsm8k", *rows)


def test_missing_column(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text(json.dumps({"question": "1+1?", "gold": "#### 2"}) + "\n")
    line = error_of_rows(tmp_path / "d.jsonl")
    assert "'answer'" in line
    assert "gold" in line


def test_prompts_beyond_the_context() -> None:
    assert "3000 + 80 = 3080 tokens, but the model's context is 2048" in error_here(
        "check", *STARTER, "--rollout.max-prompt-tokens", "3000", "--rollout.max-response-tokens", "80"
    )


def test_programs_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bubblewrap missing: refused, with the remedy, before anything starts."""
    monkeypatch.setenv("PATH", str(tmp_path))
    options = [
        "--model.path=starter",
        "--task.name",
        "mbpp",
        "--task.path",
        "tests/data/mbpp/mbpp.jsonl",
        "--task.eval-problems",
        "2",
    ]
    options += ["--task.columns.prompt", "text", "--task.columns.tests", "test_list", "--task.judge-timeout", "60"]
    assert "task.sandbox = bubblewrap" in error_here("check", *options)
    result = here("check", *options, "--task.sandbox", "unsafe-subprocess")
    assert "bubblewrap" not in result.stderr
    assert "they can read and change your files" in result.stderr


def test_a_data_file_that_was_cut(tmp_path: Path) -> None:
    whole = "".join(json.dumps({"question": f"{i}+1?", "answer": f"#### {i + 1}"}) + "\n" for i in range(3))
    (tmp_path / "d.jsonl").write_text(whole[:-9])
    line = error_of_rows(tmp_path / "d.jsonl")
    assert "line 3: the file ends in the middle of this line" in line


def test_unreadable_model(tmp_path: Path) -> None:
    assert "model.path" in error_here("check", "--task.name=sums", "--model.path", str(tmp_path))


def test_not_enough_cpus() -> None:
    line = error_here("check", *STARTER, "--cluster.rollout_cpus", "500")
    assert "asks for" in line
    assert "the cluster has" in line


@pytest.mark.parametrize("command", ["check", "train"])
def test_a_cluster_that_is_gone(command: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
    line = error_here(command, *STARTER, "--cluster.address", address, "--run.root", str(tmp_path))
    assert f"cluster.address = '{address}'" in line
    assert "Connection refused" in line


@pytest.mark.parametrize("recipe", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_checks_offline(recipe: Path) -> None:
    result = here("check", "--config", str(recipe), "--offline")
    assert result.returncode == 0, result.stderr
    asks_for_gpus = load_config(recipe).cluster.device == "cuda"
    assert ("placement on cuda" in result.stdout and "GPUs in total" in result.stdout) == asks_for_gpus


def test_report_summarises_a_run_and_draws_it_anew(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine", "demo")
    assert "is not a run" in error_here("report", str(run.path))
    run.config.write_text(dump_config(Config()), encoding="utf-8")
    assert "no finished iteration" in error_here("report", str(run.path))
    sink = JsonlSink(run.metrics)
    for number in (1, 2):
        sink.write(iteration(number))
    sink.close()
    result = here("report", str(run.path))
    assert result.returncode == 0, result.stderr
    assert "Run mine: 2 iterations of 40 (unfinished)" in result.stdout  # 40: the default of run.iterations
    assert run.curves.stat().st_size > 0


def test_check_prints_what_differs_from_the_defaults_and_with_all_every_field() -> None:
    options = ("check", "--offline", "--config", "configs/demo.yaml", "--task.columns.prompt", "q")
    short, whole = here(*options).stdout, here(*options, "--all").stdout
    assert "columns.prompt=q" in short
    assert "gae" in short
    assert "project" not in short
    assert short.count("\n") < 40
    assert "project: retrospect" in whole


def test_check_prints_resolved_values_and_batch_arithmetic() -> None:
    result = here(
        "check", "--offline", *STARTER, "--rollout.starts", "12", "--rollout.samples", "4", "--learner.minibatches", "6"
    )
    assert "12 starts x 4 samples = 48" in result.stdout
    assert "48 / 6 = 8 trajectories" in result.stdout


def test_a_working_directory_that_was_deleted_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["check"]) == 2
    assert "the folder that this was started in is gone" in capsys.readouterr().err
