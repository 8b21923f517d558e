"""What `check` and `train` find before anything expensive, by one function; rewards of a user that misbehave among
it."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import launch
from commands import train as commands
from commands.preflight import check_configuration
from core.config import Config
from core.errors import ConfigError
from core.load import override
from tests.commands.rewards import REWARDS

TINY = ["--task.problems", "8", "--task.eval_problems", "4", "--task.judge_timeout", "1"]
REFUSED = {
    "raises": r"judge raised ZeroDivisionError: division by zero \(rewards\.py, line \d+\)",
    "raises_below": r"judge raised JSONDecodeError: .* \(rewards\.py, line \d+\)",  # the user's line, not the library's
    "not_a_number": "judge returned a reward of nan",
    "enormous": r"judge returned a reward of 1e\+300",
    "text": "judge returned str, expected a number or a Verdict",
    "no_arguments": r"'.*:no_arguments' takes \(\); name a function of .* TRL's \(.* verl's \(",
    "exits": r"judge raised SystemExit: 3 \(rewards\.py, line \d+\)",
    "exits_at_once": "judge crashed: exit status 3",
    "hangs": "judge timed out after 1 s of processor time",
    "nothing": "verifier '.*:nothing': .* has no attribute 'nothing'; it defines raises, raises_below, not_a_number, ",
}


def config(folder: Path, *options: str) -> Config:
    return override(Config(), ["--run.root", str(folder), *TINY, *options])


def test_every_reward_that_misbehaves_is_tried() -> None:
    assert set(REWARDS) | {"nothing"} == set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_training_refuses_a_reward_that_gives_no_verdict(name: str, tmp_path: Path) -> None:
    """Before a model is looked for: `model.path` names none. In this process (`--local`) the reward is tried in another
    one."""
    wrong = config(tmp_path, "--task.reward", f"tests.commands.rewards:{name}", "--model.path", str(tmp_path))
    with pytest.raises(ConfigError, match=REFUSED[name]):
        commands.train(wrong, "test", local=name == "hangs")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("run.mirror", "gopher://x", "gopher://x: "),
        ("run.root", "/proc/x", "run.root"),
        ("learner.value_path", "/nowhere", "learner.value_path = /nowhere: no such directory"),
        ("monitor.sinks", "wandb", "monitor.sinks: wandb is not installed"),
    ],
)
def test_what_train_refuses_check_refuses_too(
    field: str,
    value: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("launch.signal.signal", lambda *_: None)
    if field == "monitor.sinks":
        monkeypatch.setattr("monitor.trackers.find_spec", lambda _: None)
    for command in ("check", "train"):
        assert (
            launch.main([command, "--task.name", "arithmetic", "--run.root", str(tmp_path), f"--{field}", value]) == 2
        )
        assert capsys.readouterr().err.startswith(f"error: {told}")


@pytest.mark.parametrize("gpus", [0, 1])
def test_options_for_gpus_alone_follow_from_the_device_that_is_chosen(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/troubleshooting.md names `enforce_eager` without `cluster.device`, which is auto."""
    monkeypatch.setattr("commands.preflight.this_machine", lambda: SimpleNamespace(gpus=gpus))
    eager = override(Config(), ["--rollout.engine_options", '{"enforce_eager": true}'])
    with nullcontext() if gpus else pytest.raises(ConfigError, match=r"it needs cluster\.device cuda"):
        check_configuration(eager)
