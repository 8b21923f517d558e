"""The plan and the page of `bench.learning`. Its training is `--quick`."""

from dataclasses import asdict
from pathlib import Path

import pytest

from bench.learning import page
from bench.learning.plan import ARMS, SETTINGS, configuration, matrix
from bench.runs import Run, append_line
from core.plan import batch_plan
from trainer.build import check_methods

WORK = Path("runs")


@pytest.mark.parametrize("run", matrix(list(SETTINGS), list(ARMS), [1]), ids=lambda run: run.name)
def test_every_run_of_the_plan_can_start(run: Run) -> None:
    config = configuration(run, WORK, {})
    plan = batch_plan(config)
    assert plan.starts - plan.replayed_starts == 8
    check_methods(config)


def test_arms_differ_in_what_they_name() -> None:
    for part in SETTINGS:
        arms = {arm: configuration(Run(part, arm, 3), WORK, {}).model_dump() for arm in ARMS}
        for arm, found in arms.items():
            for name in {*ARMS[arm], *ARMS["replay"]}:
                section, _, field = name.partition(".")
                found[section][field] = arms["replay"][section][field]
            assert found == arms["replay"], arm
    changed = configuration(Run("rule hard", "ppo", 3), WORK, {"learner.policy_lr": "2e-4"})
    assert changed.learner.policy_lr == 2e-4


def test_every_arm_comes_before_the_next_seed() -> None:
    runs = matrix(["rule medium", "rule hard"], ["ppo", "both"], [1, 2])
    assert [run.seed for run in runs] == [1] * 4 + [2] * 4


def test_the_page_by_hand(tmp_path: Path) -> None:
    """PPO is at 0.5 after 125 of 200 tokens, imitation after 62.5, replay never."""
    table = tmp_path / "learning.jsonl"
    for arm, success in (("ppo", (0.0, 0.4, 0.8)), ("imitation", (0.0, 0.8, 0.8)), ("replay", (0.0, 0.1, 0.2))):
        for seed in (1, 2):
            rows = [
                {"generated": 100 * at, "trained_seconds": 30 * at, "pass@1": one} for at, one in enumerate(success)
            ]
            run = asdict(Run("rule hard", arm, seed))
            append_line(table, {"run": run, "commit": "abc", "budget": 200, "evaluations": rows})
    found = page.read_settings(table)
    assert list(found) == ["rule hard"]
    arms = found["rule hard"]
    assert page.mean(arms, "area", "ppo").mean == pytest.approx((20 + 60) / 200)
    assert page.mean(arms, "at the end", "replay", "ppo").mean == pytest.approx(0.2 - 0.8)
    ratio = page.tokens_to_half(arms, "imitation", "ppo")
    assert ratio
    assert ratio.value == pytest.approx(0.5)
    assert page.ratio_text(page.tokens_to_half(arms, "ppo", "replay"), "replay") == "replay never"
    assert page.ratio_text(page.tokens_to_half(arms, "replay", "ppo"), "ppo").startswith("never")
    assert page.ratio_text(page.tokens_to_half(arms, "replay", "replay"), "replay") == "neither"
    assert page.tokens_to_half(arms, "both", "ppo") is None
    assert [row[1:3] for row in page.rows_of("rule hard", arms)] == [["ppo", "2"], ["imitation", "2"], ["replay", "2"]]
    assert [check.value for check in page.checks_of("rule hard", arms)] == [pytest.approx(0.5)]
    page.draw(found, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
