"""The pure parts of `bench.learning`: measures, statistics, the plan and the page. Its engine part is `--quick`."""

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.learning import page, plots, results
from bench.learning.matrix import pending
from bench.learning.measures import Curve, area, learnability, plain, reached_between, tokens_to
from bench.learning.plan import (
    ABLATIONS,
    ARMS,
    HARDNESSES,
    PAST,
    PAST_TASKS,
    REPLAYING,
    SETTINGS,
    Run,
    configuration,
    matrix,
)
from bench.learning.statistics import mean_over_seeds, median_over_seeds, token_ratio, tokens_to_mastery
from core.plan import batch_plan
from learner.methods import find_estimator
from trainer.build import check_methods

FAST = Curve([0, 100, 200], [0.0, 0.8, 0.8])
SLOW = Curve([0, 100, 200], [0.0, 0.4, 0.8])


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_area_by_hand() -> None:
    assert area(FAST, 200) == pytest.approx((40 + 80) / 200)  # a triangle of 100 x 0.8 / 2, then 100 x 0.8
    assert area(SLOW, 400) == pytest.approx((20 + 60 + 160) / 400)  # the last value is kept for 200 tokens
    assert area(SLOW, 150) == pytest.approx((20 + 25) / 150)  # 50 tokens from 0.4 to 0.6
    assert area(Curve([0], [0.3]), 100) == pytest.approx(0.3)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0.1, 3))
def test_the_area_lies_between_least_and_most(success: list[float], share: float) -> None:
    curve = Curve([10.0 * at for at in range(len(success))], success)
    assert min(success) - 1e-9 <= area(curve, share * curve.tokens[-1]) <= max(success) + 1e-9


def test_tokens_to_a_success_by_hand() -> None:
    assert tokens_to(SLOW, 0.2) == 50
    assert tokens_to(SLOW, 0.0) == 0
    assert math.isinf(tokens_to(SLOW, 0.9))
    assert tokens_to(Curve([0, 10, 20, 30], [0.1, 0.5, 0.2, 0.6]), 0.5) == 10  # the first time counts
    assert tokens_to_mastery(SLOW, 30, 0.6) == 120  # 150 - 30
    assert math.isinf(tokens_to_mastery(SLOW, None, 0.6))


def test_the_time_to_a_success_lies_between_two_evaluations() -> None:
    assert reached_between(SLOW, 0.2) == (0, 100)
    assert reached_between(SLOW, 0.0) == (0, 0)
    assert reached_between(SLOW, 0.9) == (200, math.inf)
    # by evaluations at 100 and 200 in two of three seeds: medians 100 and 200 of (0, 100), (100, 200), (100, 200)
    after, by = zip(*(reached_between(one, 0.6) for one in (FAST, SLOW, SLOW)), strict=True)
    found = {"to half, after": median_over_seeds(after, rng()), "to half, by": median_over_seeds(by, rng())}
    assert page.bracket(found, "to half", 1.0) == "100 to 200"
    assert page.bracket({**found, "to half, by": median_over_seeds([math.inf], rng())}, "to half", 1.0) == "never"


def test_the_arm_without_advantages_has_the_loss_on_successes_alone() -> None:
    config = configuration(Run("rule", "medium", "raft", 1), Path("runs"), {})
    assert (config.replay.imitated, config.algorithm.positive_coefficient) == (0, 1.0)
    estimator = find_estimator(config.algorithm.estimator)
    assert not estimator.whitened


def test_learnability_is_unbiased() -> None:
    """Over all outcomes of 3 continuations with p = 0.4 its mean is 4 x 0.4 x 0.6 = 0.96."""
    chances = {0: 0.6**3, 1: 3 * 0.4 * 0.36, 2: 3 * 0.16 * 0.6, 3: 0.4**3}
    assert sum(p * learnability([(3, c)]) for c, p in chances.items()) == pytest.approx(0.96)
    assert learnability([(2, 1), (1, 1)]) == 2.0  # 4 x 2/1 x 1/4; one continuation says nothing
    assert math.isnan(learnability([(1, 0)]))


def test_intervals_over_seeds() -> None:
    one = mean_over_seeds([0.5], rng())
    assert (one.value, one.low, one.high, one.seeds) == (0.5, 0.5, 0.5, 1)
    # two seeds, 0 and 1: the mean of a draw is 0, 1/2 or 1 with chances 1/4, 1/2, 1/4, so 95 % reach from 0 to 1
    two = mean_over_seeds([0.0, 1.0], rng())
    assert (two.value, two.low, two.high) == (0.5, 0.0, 1.0)
    # median of three, one of which never came: all three are `never` in 1/27 of the draws, the median is in 7/27
    never = median_over_seeds([10.0, math.inf, 30.0], rng())
    assert (never.value, never.low, never.high) == (30.0, 10.0, math.inf)


def test_the_ratio_of_tokens_by_hand() -> None:
    # SLOW ends at 0.8, which it reaches at 200 tokens and FAST at 100
    same = token_ratio([FAST] * 5, [SLOW] * 5, 200, None, rng())
    assert (same.value, same.low, same.high) == pytest.approx((0.5, 0.5, 0.5))
    assert token_ratio([SLOW] * 5, [FAST] * 5, 200, None, rng()).value == pytest.approx(2.0)
    # 0.4 is reached at 50 and at 100 tokens; nobody reaches 0.9
    assert token_ratio([FAST] * 3, [SLOW] * 3, 200, 0.4, rng()).value == pytest.approx(0.5)
    assert math.isnan(token_ratio([FAST], [SLOW], 200, 0.9, rng()).value)
    flat = Curve([0, 200], [0.0, 0.1])
    assert token_ratio([FAST], [flat], 200, 0.4, rng()).value == 0.0  # the baseline never gets there
    assert math.isinf(token_ratio([flat], [SLOW], 200, None, rng()).value)
    nothing = Curve([0, 200], [0.0, 0.002])  # gains nothing, so the target is 0.05
    assert token_ratio([FAST], [nothing], 200, None, rng()).value == 0.0
    assert math.isnan(token_ratio([nothing], [nothing], 200, None, rng()).value)
    above, higher = Curve([0, 200], [0.2, 0.21]), Curve([0, 200], [0.2, 0.3])  # the gain counts: the target is 0.25
    assert token_ratio([higher], [above], 200, None, rng()).value == 0.0
    assert math.isnan(token_ratio([above], [above], 200, None, rng()).value)
    nearly, whole = Curve([0, 100, 200], [0.0, 0.99, 0.995]), Curve([0, 200], [0.0, 1.0])  # 0.99 is mastery
    assert token_ratio([nearly], [whole], 200, None, rng()).value == pytest.approx(100 / 198)
    mixed = token_ratio([FAST, SLOW, FAST, FAST, SLOW], [SLOW] * 5, 200, None, rng())
    assert mixed.low < mixed.value <= mixed.high == pytest.approx(1.0)


def test_every_run_of_the_plan_can_start() -> None:
    runs = matrix(list(SETTINGS), HARDNESSES, list(ARMS), [1])
    varied = [arm for arm in ABLATIONS if arm not in PAST]
    everywhere = len({*ARMS} - {*PAST, *ABLATIONS}) - sum(arm.endswith("_falling") for arm in ARMS)
    falling = [
        setting.falling for hardnesses in SETTINGS.values() for setting in hardnesses.values() if setting.falling
    ]
    assert all("ppo_falling" in arms and arms.keys() <= ARMS.keys() for arms in falling)
    own = sum(arm.endswith("_falling") for arms in falling for arm in arms)
    assert len(runs) == (len(SETTINGS) - len(PAST_TASKS)) * (3 * everywhere + len(varied)) + own
    assert len({run.name for run in runs}) == len(runs)
    for run in runs:
        config = configuration(run, Path("runs"), {})
        plan, small = batch_plan(config), "rollout.starts" in ARMS[run.arm]
        assert plan.starts - plan.replayed_starts == (8 if small else {0.0: 32, 0.5: 16}[config.replay.ratio])
        check_methods(config)
        falls = run.arm in SETTINGS[run.task][run.hardness].falling
        assert (config.run.seed, config.learner.schedule) == (1, "linear" if falls else "constant")


@pytest.mark.parametrize(
    ("arm", "plain_arm"),
    [
        ("learnability_imitating", "learnability_small"),
        ("ppo_kl_imitating", "ppo_kl"),
        ("ppo_imitating", "ppo_growing"),
    ],
)
def test_imitation_is_all_that_its_arms_add(arm: str, plain_arm: str) -> None:
    for hardness in HARDNESSES:
        one, other = (configuration(Run("rule", hardness, name, 3), Path("runs"), {}) for name in (arm, plain_arm))
        assert (one.replay.imitated, one.algorithm.positive_coefficient) == (32, 1.0)
        replay, algorithm = {**one.replay.model_dump(), "imitated": 0}, one.algorithm.model_dump()
        assert {
            **one.model_dump(),
            "replay": replay,
            "algorithm": {**algorithm, "positive_coefficient": 0.0},
        } == other.model_dump()


def test_arms_differ_only_where_rollouts_start_and_in_the_kl_that_holds_the_root() -> None:
    plain_one = configuration(Run("rule", "hard", "ppo", 3), Path("runs"), {}).model_dump()
    other = configuration(Run("rule", "hard", "learnability_small", 3), Path("runs"), {}).model_dump()
    assert {name for name in other if other[name] != plain_one[name]} == {"replay", "rollout", "algorithm"}
    assert {**plain_one["algorithm"], "kl_coefficient": 0.2, "kl_schedule": "unsolved"} == other["algorithm"]
    assert {**plain_one["rollout"], "starts": 16} == other["rollout"]
    assert len(REPLAYING) > 4
    for task in SETTINGS.keys() - PAST_TASKS:
        for hardness in HARDNESSES:
            ours, *others = (
                configuration(Run(task, hardness, arm, 3), Path("runs"), {}).model_dump()
                for arm in ("learnability_small", *(arm for arm in REPLAYING if arm not in PAST))
            )
            for one in others:
                kept = {name: ours["replay"][name] for name in ("ranking", "canonical")}
                algorithm = {**one["algorithm"], "estimator": ours["algorithm"]["estimator"]}
                assert {**one, "replay": {**one["replay"], **kept}, "algorithm": algorithm} == ours
    changed = configuration(Run("rule", "hard", "ppo", 3), Path("runs"), {"learner.policy_lr": "2e-4"})
    assert changed.learner.policy_lr == 2e-4


def test_the_matrix_takes_every_arm_before_the_next_seed_and_skips_what_is_done(tmp_path: Path) -> None:
    runs = matrix(["rule"], ["easy", "hard"], ["ppo", "value"], [1, 2])
    assert [run.seed for run in runs] == [1] * 4 + [2] * 4
    results.append_result(tmp_path, {"run": asdict(Run("rule", "easy", "value", 1))})
    assert [run.name for run in pending(runs, tmp_path)][:2] == ["rule-easy-ppo-1", "rule-hard-ppo-1"]


def result(arm: str, seed: int, curve: Curve, erroneous: float | None) -> results.Result:
    """The result of a run of the hard rule."""
    rows = [
        {"generated": at, "trained": 2 * at, "seconds": at, "pass@1": {"mean": success}, "erroneous_share": erroneous}
        for at, success in zip(curve.tokens, curve.success, strict=True)
    ]
    last = {"pass@1": {"mean": curve.success[-1]}, "pass@8": {"mean": 0.9}, "seconds": 60.0, "trained": 400}
    return {
        "run": {"task": "rule", "hardness": "hard", "arm": arm, "seed": seed},
        "commit": "abc",
        "budget": 200,
        "rows": rows,
        "first_success": {"root": 50, "any": 50},
        "final": last,
    }


def test_the_page_compares_arms_with_the_best_baseline(tmp_path: Path) -> None:
    for seed in range(1, 6):
        results.append_result(tmp_path, result(results.OURS, seed, FAST, 0.25))
        results.append_result(tmp_path, result("value", seed, Curve([0, 200], [0.0, 0.1]), 0.75))
        results.append_result(tmp_path, result("ppo", seed, SLOW, None))
        results.append_result(tmp_path, result("grpo", seed, Curve([0, 199, 200], [0.0, 0.0, 0.9]), None))
    arms = results.read_results(tmp_path)["rule", "hard"]
    assert [page.best_baseline(arms, measure) for measure in ("area", "final success")] == ["ppo", "grpo"]
    table, more = "\n".join(page.section(("rule", "hard"), arms, "x.png")).split("More measures:")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines()}
    leading = "| 5 | 0.60 (0.60 to 0.60) | 60 (60 to 60) |"  # area (40 + 80) / 200, seconds
    ours = f"{leading} 0.80 (0.80 to 0.80) | 0.90 (0.90 to 0.90) |"  # final success, pass@k
    assert ours in rows[results.OURS]
    assert rows[results.OURS].endswith("| 0.25 (0.25 to 0.25) | - | - | - |")  # erroneous
    assert rows["ppo"].endswith("| 0.50 (0.50 to 0.50) | 0.50 (0.50 to 0.50) | 0.50 (0.50 to 0.50) |")
    never = "arm never (arm never to arm never)"
    assert rows["value"].endswith(f"| {never} | {never} | 0.06 (0.06 to 0.06) |")  # at 0.1 after 12.5 instead of 200
    assert rows["grpo"].endswith("| ours never (ours never to ours never) |")
    assert f"| {results.OURS} |" in more
    arms["on_top_filled"], arms[results.ABLATED] = arms["ppo"], arms[results.OURS]
    tables = "\n".join(page.section(("rule", "hard"), arms, "x.png")).split("with one piece changed:")
    assert ["| on_top_filled | 5 |" in one for one in tables] == [False, True]
    assert [f"tokens of `{results.ABLATED}` / its" in one for one in tables] == [False, True]
    del arms[results.ABLATED]
    (row,) = page.summary({("rule", "hard"): arms, ("rule", "easy"): {"ppo": arms["ppo"]}})[2:-1]
    assert row.startswith(
        "| rule, hard (5 seeds) | 0.0000 (0.0000 to 0.0000) | ppo, grpo | 0.40 (0.40 to 0.40), 0.00 (0.00 to 0.00) "
        "| 0.60 (0.60 to 0.60) | 60 (60 to 60), 60 (60 to 60) | 60 (60 to 60) "
        "| 0.80 (0.80 to 0.80), 0.90 (0.90 to 0.90) |"
    )
    assert row.endswith(
        "| 0.80 (0.80 to 0.80) | 0.50 (0.50 to 0.50) | 0.50 (0.50 to 0.50) | ours never (ours never to ours never) |"
    )
    checks = page.goals(("rule", "hard"), arms)
    # never at GRPO's final success; half of PPO's tokens to 0.8 in every draw; `value` never gets there; the same
    # pass@k as GRPO;
    # a third of the erroneous states of `value`
    assert [check.value for check in checks] == [math.inf, math.inf, 0.5, 0.5, 0.0, 0.0, 1 / 3]
    assert [check.ok for check in checks] == [False, False, True, True, True, True, True]
    plots.draw(plots.panels_of(("rule", "hard"), arms), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert results.curve(arms["ppo"][1], "trained").tokens == [0, 200, 400]
    plots.draw(plots.overview({("rule", "hard"): arms}), tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    del arms[results.OURS][5]
    assert page.goals(("rule", "hard"), arms) == []  # four seeds are too few


def test_mastered_arms_end_equally_and_what_is_never_mastered_is_compared_at_the_end(tmp_path: Path) -> None:
    for seed in range(1, 6):
        results.append_result(tmp_path, result(results.OURS, seed, Curve([0, 200], [0.0, 0.7]), None))
        results.append_result(tmp_path, result("ppo", seed, Curve([0, 100, 200], [0.0, 0.9, 0.992]), None))
        results.append_result(tmp_path, result("grpo", seed, Curve([0, 200], [0.0, 0.998]), None))
        results.append_result(tmp_path, result("value_small", seed, Curve([0, 200], [0.0, 0.35]), None))
        results.append_result(tmp_path, result("uniform_small", seed, Curve([0, 200], [0.1, 0.12]), None))
    arms = results.read_results(tmp_path)["rule", "hard"]
    assert (
        page.best_baseline(arms, "final success") == "ppo"
    )  # GRPO ends higher, but both above 0.99: PPO has more area
    del arms["grpo"], arms["ppo"]
    arms["ppo"] = arms["value_small"]
    values = {check.name: check.value for check in page.goals(("rule", "hard"), arms)}
    name = (
        "rule, hard: tokens of learnability_imitating to the final success of {} / its tokens, upper end of its "
        "interval"
    )
    assert values[name.format("value_small")] == pytest.approx(0.5)  # 0.35 after 100 instead of 200
    assert values[name.format("uniform_small")] == 0.0  # it gains 0.02, which is nothing


def test_a_task_that_no_arm_learns_is_not_in_the_plot_of_all_settings(tmp_path: Path) -> None:
    for seed in range(1, 6):
        results.append_result(tmp_path, result("ppo", seed, Curve([0, 200], [0.04, 0.06]), None))
        results.append_result(tmp_path, result("grpo", seed, Curve([0, 200], [0.04, 0.2]), None))
    arms = results.read_results(tmp_path)["rule", "hard"]
    assert plots.overview({("rule", "hard"): {"ppo": arms["ppo"]}}) == []
    (panel,) = plots.overview({("rule", "hard"): arms})
    assert panel[2] == "hidden rule, 7 lines: 4 % before training"
    assert set(plots.SHOWN) <= plots.WORDS.keys() <= ARMS.keys()


def test_results_are_plain_json() -> None:
    found = plain({"a": [1.23456789, math.nan, math.inf], "b": (2, "x"), "c": True})
    assert found == {"a": [1.2346, None, None], "b": [2, "x"], "c": True}
