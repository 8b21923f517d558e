from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import CheckpointError
from learner.progress import Layout, Progress, read_progress

LAYOUT = Layout(
    "Qwen2ForCausalLM with 7 trained parameters", zero_stage=2, value_model="separate", lora_rank=0, lora_alpha=16
)


def test_the_warm_up_ends_after_its_length() -> None:
    progress = Progress(ranks=1, layout=LAYOUT, kl_configured=0.0, kl_coefficient=0.0)
    trained = []
    for _ in range(4):
        trained.append(progress.begin(2))
        progress.note_steps([False])
        progress.note_critic(0.0, True, 0.0)
    assert trained == [False, False, True, True]


def test_the_warm_up_ends_early_when_the_critic_has_settled() -> None:
    progress = Progress(ranks=1, layout=LAYOUT, kl_configured=0.0, kl_coefficient=0.0)
    trained = []
    for variance in (0.0, 0.3, 0.5, 0.52, 0.51, 0.1, 0.9):
        trained.append(progress.begin(100))
        progress.note_steps([False])
        progress.note_critic(variance, True, 0.05)
    # 0.5, 0.52, 0.51 lie within 0.05: the policy learns from the next update on, and never stops again
    assert trained == [False] * 5 + [True] * 2


def test_a_critic_that_has_not_learnt_anything_yet_has_not_settled() -> None:
    progress = Progress(ranks=1, layout=LAYOUT, kl_configured=0.0, kl_coefficient=0.0)
    for variance in (0.0, 0.01, 0.02, -0.3, -0.31, -0.3, 0.1, 0.4, 0.41):
        progress.note_critic(variance, True, 0.05)
        assert not progress.policy_trains
    progress.note_critic(0.42, True, 0.05)
    assert progress.policy_trains


def test_batches_whose_returns_do_not_vary_do_not_settle_the_critic() -> None:
    progress = Progress(ranks=1, layout=LAYOUT, kl_configured=0.0, kl_coefficient=0.0)
    for variance, vary in [(0.1, True), *[(0.0, False)] * 5, (0.11, True)]:
        progress.note_critic(variance, vary, 0.05)
        assert not progress.policy_trains
    progress.note_critic(0.12, True, 0.05)
    assert progress.policy_trains


def test_the_problems_of_a_row_of_skipped_steps_are_kept_until_a_step_is_taken() -> None:
    progress = Progress(ranks=1, layout=LAYOUT, kl_configured=0.0, kl_coefficient=0.0)
    progress.note_steps([False, True], ["p3"])
    progress.note_steps([True, True], ["p7", "p1"])
    assert progress.blamed == ["p1", "p3", "p7"]
    progress.note_steps([True, False, True], ["p9"])
    assert progress.blamed == ["p9"]
    progress.note_steps([False], [])
    assert progress.blamed == []


def test_skipped_steps_count_in_a_row() -> None:
    progress = Progress(ranks=1, layout=LAYOUT, kl_configured=0.0, kl_coefficient=0.0)
    progress.note_steps([True, False, True])
    assert progress.skipped_in_row == 1
    progress.note_steps([True, True])
    assert (progress.skipped_in_row, progress.steps, progress.updates) == (3, 5, 2)
    progress.note_steps([False])
    assert progress.skipped_in_row == 0


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    progress = Progress(2, LAYOUT, 0.05, 0.03, version=7, updates=6, steps=24, blamed=["p3"], variances=[0.1, 0.2])
    progress.save(tmp_path / "learner.json")
    assert read_progress(tmp_path / "learner.json", LAYOUT) == progress
    other = replace(LAYOUT, zero_stage=3, lora_rank=8)
    with pytest.raises(
        CheckpointError, match=r"\(zero_stage 2 in the checkpoint, 3 now; lora_rank 0 in the checkpoint, 8 now\)"
    ):
        read_progress(tmp_path / "learner.json", other)
    with pytest.raises(CheckpointError, match="no complete learner checkpoint"):
        read_progress(tmp_path / "missing.json", LAYOUT)


def test_the_policy_counts_its_own_steps() -> None:
    progress = Progress(ranks=1, layout=LAYOUT, kl_configured=0.0, kl_coefficient=0.0)
    for _ in range(3):
        progress.begin(2)
        progress.note_steps([False, True])
    assert (progress.steps, progress.policy_steps) == (6, 2)


@pytest.mark.parametrize(
    ("configured", "now", "expected"), [(0.05, 0.05, 0.08), (0.05, 0.0, 0.0), (0.0, 0.05, 0.05), (0.05, 0.1, 0.1)]
)
def test_the_kl_coefficient_is_that_of_the_checkpoint_unless_another_is_configured(
    configured: float, now: float, expected: float
) -> None:
    progress = Progress(ranks=1, layout=LAYOUT, kl_configured=configured, kl_coefficient=configured and 0.08)
    progress.go_on(ranks=2, kl_configured=now)
    assert (progress.ranks, progress.kl_configured, progress.kl_coefficient) == (2, now, expected)
