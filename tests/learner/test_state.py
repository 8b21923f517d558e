from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import CheckpointError
from learner.state import CheckpointLayout, LearnerState, learning_rate, read_state

LAYOUT = CheckpointLayout(
    "Qwen2ForCausalLM with 7 trained parameters", zero_stage=2, value_model="separate", lora_rank=0, lora_alpha=16
)


def new_state() -> LearnerState:
    return LearnerState(kl_configured=0.0, kl_coefficient=0.0)


def note(state: LearnerState, skipped: list[bool], problems: list[str], warmup: int = 0) -> None:
    """An update of one pass."""
    count = len(skipped)
    trained = count * (not state.warms_up(warmup))
    state.note_steps(skipped, problems, steps=count, policy_steps=trained, warmup=warmup)


def test_the_warm_up_ends_after_its_length() -> None:
    state = new_state()
    trained = []
    for _ in range(4):
        trained.append(not state.warms_up(2))
        note(state, [False], [], warmup=2)
    assert trained == [False, False, True, True]
    assert not state.warms_up(100)  # of a resumed run


def test_the_problems_of_a_row_of_skipped_steps_are_kept_until_a_step_is_taken() -> None:
    state = new_state()
    note(state, [False, True], ["p3"])
    note(state, [True, True], ["p7", "p1"])
    assert state.skipped_problems == ["p1", "p3", "p7"]
    note(state, [True, False, True], ["p9"])
    assert state.skipped_problems == ["p9"]
    note(state, [False], [])
    assert state.skipped_problems == []


def test_skipped_steps_count_in_a_row() -> None:
    state = new_state()
    note(state, [True, False, True], [])
    assert state.skipped_in_row == 1
    note(state, [True, True], [])
    assert (state.skipped_in_row, state.steps, state.updates) == (3, 5, 2)
    note(state, [False], [])
    assert state.skipped_in_row == 0


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    state = LearnerState(0.05, 0.03, version=7, updates=6, steps=24, skipped_problems=["p3"])
    state.save(tmp_path / "learner.json", 2, LAYOUT)
    assert read_state(tmp_path / "learner.json", LAYOUT) == (state, 2)
    other = replace(LAYOUT, zero_stage=3, lora_rank=8)
    with pytest.raises(CheckpointError, match=r"zero_stage 2 .*3 .*lora_rank 0 .*8 "):
        read_state(tmp_path / "learner.json", other)
    with pytest.raises(CheckpointError, match="checkpoint"):
        read_state(tmp_path / "missing.json", LAYOUT)


def test_the_policy_counts_its_own_steps() -> None:
    state = new_state()
    for _ in range(3):
        note(state, [False, True], [], warmup=2)
    assert (state.steps, state.policy_steps) == (6, 2)


@pytest.mark.parametrize(
    ("configured", "now", "expected"), [(0.05, 0.05, 0.08), (0.05, 0.0, 0.0), (0.0, 0.05, 0.05), (0.05, 0.1, 0.1)]
)
def test_the_kl_coefficient_is_that_of_the_checkpoint_unless_another_is_configured(
    configured: float, now: float, expected: float
) -> None:
    state = LearnerState(kl_configured=configured, kl_coefficient=configured and 0.08)
    state.continue_with(now)
    assert (state.kl_configured, state.kl_coefficient) == (now, expected)


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    assert [learning_rate(2.0, step, 4, 100, "constant") for step in range(5)] == [0.5, 1.0, 1.5, 2.0, 2.0]


def test_schedules_fall_after_the_warm_up() -> None:
    # 2 warm-up steps, then 4 steps: linear 1, 3/4, 2/4, 1/4; cosine (1 + cos(k pi / 4)) / 2
    assert [learning_rate(1.0, step, 2, 6, "linear") for step in range(2, 7)] == [1.0, 0.75, 0.5, 0.25, 0.25]
    cosine = [learning_rate(1.0, step, 2, 6, "cosine") for step in range(2, 6)]
    assert cosine == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466])
