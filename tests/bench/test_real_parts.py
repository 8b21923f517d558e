"""The parts P2 to P4 of `bench.real`: their problems, the game, and their sections by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.learning.lock import LOCK
from bench.real import game, hints, splits, whole_page
from bench.real.page import arms_of
from bench.real.plan import PARTS, Run, configuration
from bench.real.training import State
from core.errors import ConfigError
from core.records import World
from tests.trainer.examples import iteration


def test_hints_are_the_problems_without_a_success_in_the_assay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": f"q{n}", "answer": "x\n" * (2 + n % 3) + "#### 1"} for n in range(2400)]
    monkeypatch.setattr(splits, "load_rows", lambda *_: rows)
    run = Run("hints", "prefix", 1)
    table = tmp_path / "assay.jsonl"
    won = [0, 3, 0, 16, 1, 0, 2, 1]  # of the first eight problems
    table.write_text(json.dumps({"run": {"arm": "gsm8k", "seed": 1}, "roots": {"success": won}}) + "\n")
    assert hints.successes(tmp_path, 1) == won
    with pytest.raises(ConfigError, match="first python -m bench"):
        hints.successes(tmp_path, 2)
    splits.write_splits(run, tmp_path, 0.01, won)
    found = {
        name: [json.loads(line) for line in (tmp_path / "data" / "gsm8k-1" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("assay", "hints", "main")
    }
    assert found["hints"] == [found["assay"][at] for at in (0, 2, 5)]
    assert len(found["assay"]) == len(found["main"]) == 8
    with pytest.raises(ValueError, match="zip"):  # the assay had other problems
        splits.write_splits(run, tmp_path, 0.01, won[:-1])


def test_code_is_held_out_on_the_usual_test_problems() -> None:
    rows = [{"task_id": number} for number in range(1, 975)]
    held_out = [row["task_id"] for row in splits.held_out_mbpp(rows)]
    assert sorted(held_out) == list(splits.USUAL_TEST)
    config = configuration(Run("code", "both", 2), Path("work"), "", {})
    assert str(config.task.path).endswith("data/mbpp-2/code.jsonl")
    code = config.task.code
    assert (code.compile_error, code.runtime_error, code.failed, code.passed, code.fraction) == (0, 0, 0, 1, 1)


def test_the_game_is_the_lock_a_turn_at_a_time() -> None:
    """f is 5. + leads to 12 (m), * to 36 = 16 (q), + to 23 = 3 (d), which is a trap."""
    world = game.Dial()
    assert world.reset(World("p", "", "f>a!bdjors")) == []
    assert [world.step(key)[0][0]["content"] for key in "+*"] == ["m", "q"]
    assert world.step("+")[2]
    assert game.verify_dial("f>a!bdjors", "+m*q+").detail == "the response does not end with 'open'"
    assert world.step("=")[2]
    rng = np.random.default_rng(0)
    for _ in range(50):
        text = LOCK.draw(rng, 5)
        solution = game.DIAL.solution(text)
        world.reset(World("p", "", text))
        played, over = "", False
        for key in solution[::2]:
            assert not over
            messages, reward, over, _ = world.step(key)
            played += key + "".join(message["content"] for message in messages)
            assert reward == 0.0
            assert game.DIAL.prefix_correct(text, played)
        assert over
        assert played == solution
        assert len(solution) == 11  # five presses with their positions, and the key
        assert game.verify_dial(text, solution).correct
        assert not game.verify_dial(text, solution[:-1]).correct


def test_presses_without_end_end_the_game() -> None:
    """Pressing * goes round s (18), o (54 = 14), c (42 = 2), g (6)."""
    world = game.Dial()
    world.reset(World("p", "", "s>a!bdfhij"))
    over = [world.step("*")[2] for _ in range(9)]
    assert over == [False] * 8 + [True]


def test_a_slow_step_or_a_snapshot_is_all_that_the_other_games_add() -> None:
    runs = [Run(part, "both", 1) for part in ("game", "slow", "saved")]
    fields = [configuration(run, Path("work"), "", {}).model_dump() for run in runs]
    options = [one["rollout"].pop("environment_options") for one in fields]
    worlds = [one["rollout"].pop("environment") for one in fields]
    assert (options, worlds) == ([{}, {"delay": 0.05}, {}], ["", "", "bench.real.game:SavedDial"])
    assert fields[0] == fields[1] == fields[2]


def test_a_budget_is_used_up_in_its_unit() -> None:
    state = State(generated=100, used=40)
    metrics = iteration(1)
    empty: Any = type("Result", (), {"scored": (), "imitated": ()})()
    state.add(empty, metrics, "generated_tokens", 1)
    assert (state.used, state.generated) == (40 + metrics.generated_tokens, metrics.total_tokens)
    state.add(empty, metrics, "environment_steps", 1)
    assert state.used == 40 + metrics.generated_tokens + metrics.environment_steps
    assert state.sum_of("generated_tokens") == 2 * metrics.generated_tokens
    assert (
        f"iteration 2: {metrics.total_tokens} tokens, root success {100 * metrics.root_success:.1f} %" in state.line()
    )
    assert {PARTS[part].unit for part in ("game", "slow", "saved")} == {"environment_steps"}


def played(arm: str, seed: int, *success: float, seconds: float = 10.0) -> dict[str, Any]:
    """A run with evaluations every 100 steps, a quarter of which rebuild states."""
    count = len(success) - 1
    return {
        "run": {"part": "game", "arm": arm, "seed": seed},
        "model": "",
        "machine": "a processor",
        "rate": 1e-3,
        "commit": "abc",
        "diverged": False,
        "generated": 500 * count,
        "evaluations": [
            {"environment_steps": 100 * at, "trained_seconds": seconds * at, "pass@1": one}
            for at, one in enumerate(success)
        ],
        "iterations": {
            "environment_steps": [100] * count,
            "repeated_steps": [25] * count,
            "total_seconds": [seconds] * count,
        },
    }


def test_the_section_of_the_game_by_hand(tmp_path: Path) -> None:
    """Area by steps over 200: `both` (30 + 70) / 200 = 0.5 with 0, 0.6, 0.8; `imitation` 0.05 with 0, 0,
    0.2. By seconds to 20, the shortest run: `imitation` 0.05; `both` has taken 40, so its first half counts: 0.3."""
    table = [played("both", 1, 0.0, 0.6, 0.8, seconds=20.0), played("imitation", 1, 0.0, 0.0, 0.2)]
    lines, (one,) = whole_page.of_costs("game", {"game": arms_of(table)}, tmp_path)
    (row,) = (line for line in lines if line.startswith("| both |"))
    # 50 = 0.6 x 100 / 2 to the first evaluation, 70 to the second
    cells = (
        "0.500 (one seed) | 0.300 (one seed) | 80.0 (one seed) | 0 to 0 | 0 to 20 | 25 (one seed) | 40.0 (one seed) |"
    )
    assert row == f"| both | 1 | {cells}"
    assert any(line.startswith("| imitation | 1 | 0.050 (one seed) | 0.050 (one seed) |") for line in lines)
    assert any("never | never" in line for line in lines)
    assert "| both - imitation | 0.450 (one seed), p 1.000 | 0.250 (one seed), p 1.000 |" in lines
    assert one.value == pytest.approx(0.45)
    saved = [played("both", 1, 0.0, 0.8, 0.8)]
    lines, (gain,) = whole_page.of_costs("saved", {"game": arms_of(table), "saved": arms_of(saved)}, tmp_path)
    assert gain.value == pytest.approx(0.6 - 0.05)  # less the same imitation
    assert any("not compared" in line for line in lines)
    assert (tmp_path / "game.png").read_bytes().startswith(b"\x89PNG")


def hinted(arm: str, seed: int, *success: float) -> dict[str, Any]:
    """A run of P2."""
    return {
        **played(arm, seed, *success),
        "run": {"part": "hints", "arm": arm, "seed": seed},
        "iterations": {"trained_tokens": [300_000], "total_seconds": [600.0]},
        "solved": [30, 120],
    }


def test_hints_must_beat_the_better_of_two_supervised_models_in_every_seed(tmp_path: Path) -> None:
    """The supervised model is best after few passes, and in the last seed index at the end."""
    table = [hinted("prefix", seed, 0.05, 0.08, 0.12) for seed in (1, 2, 3)]
    table += [hinted("loss", seed, 0.05, 0.09, 0.07) for seed in (1, 2)]
    lines, _ = whole_page.of_hints("hints", {"hints": arms_of(table)}, tmp_path)
    assert "Replay of hints: undecided: runs are missing." in lines
    lines, (check,) = whole_page.of_hints(
        "hints", {"hints": arms_of([*table, hinted("loss", 3, 0.05, 0.06, 0.09)])}, tmp_path
    )
    assert any(line.endswith("points by seed index: 3.0, 3.0, 3.0.") for line in lines)
    assert "Replay of hints: recommended." in lines
    assert check.value == pytest.approx(3.0)
    once = [hinted("prefix", 1, 0.05, 0.08, 0.12), hinted("loss", 1, 0.05, 0.06, 0.11)]
    assert "Replay of hints: not recommended." in whole_page.of_hints("hints", {"hints": arms_of(once)}, tmp_path)[0]
    worse = [*table, hinted("loss", 3, 0.05, 0.06, 0.11)]
    lines, (check,) = whole_page.of_hints("hints", {"hints": arms_of(worse)}, tmp_path)
    assert "Replay of hints: not recommended." in lines
    assert check.value == pytest.approx(1.0)
    assert "| prefix | 3 | 5.0 |" in "\n".join(lines)
    assert "| 25.0 | 300 | 10 |" in "\n".join(lines)


def test_passes_of_the_supervised_arm() -> None:
    assert hints.passes_for(250_000, 20_000) == 12  # 12.5, to the even number
    assert math.isclose(whole_page.share([30, 120]), 0.25)
