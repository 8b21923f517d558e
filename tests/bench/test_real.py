"""The pure parts of `bench.real`: statistics on numbers worked out by hand, splits, arms, and the rule of decision."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.options import check_options
from bench.real import assay, page
from bench.real.__main__ import Way, perform_all
from bench.real.page import arms_of, comparisons, with_interval
from bench.real.plan import ARMS, ON, PARTS, RATES, Run, best_rate, configuration, matrix, tuning_matrix
from bench.real.run import check_model, first_evaluation, store_at_the_end
from bench.real.splits import LINES, USUAL_TEST, lines_of, split_gsm8k, split_mbpp
from bench.real.statistics import Difference, cuts, decide, difference, gain, sign_flip, t_quantile
from bench.real.training import METRICS
from bench.runs import commit
from core.config import ReplayConfig
from core.errors import ConfigError
from core.records import CutTrajectory, Provenance
from core.run_directory import RunDirectory
from replay.store import ReplayStore
from trainer.build import check_needs

WORK = Path("runs/real")


def test_quantiles_of_t_are_those_of_tables() -> None:
    tables = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 7: 2.365, 30: 2.042}
    assert {n: round(t_quantile(n), 3) for n in tables} == tables


def test_a_paired_difference_by_hand() -> None:
    # 1, 2, 3, 6: mean 3, squares of deviations 4 + 1 + 0 + 9 = 14, deviation sqrt(14 / 3) = 2.160, half 3.182 x 1.080
    found = difference([0.11, 0.12, 0.13, 0.16], [0.10] * 4)
    assert found.mean == pytest.approx(0.03)
    assert found.high - found.mean == pytest.approx(0.03437, abs=1e-5)
    assert found.p == 2 / 16  # all plus and all minus
    assert difference([0.3], [0.1]).low == -math.inf


def test_sign_flips_by_hand() -> None:
    assert sign_flip([1.0, -1.0]) == 1.0  # every sum is at least 0
    assert sign_flip([3.0, 1.0, -2.0]) == 6 / 8  # sums 2 0 6 4 and the negatives: |.| >= 2 in 6


@pytest.mark.parametrize(
    ("mean", "low", "high", "decision"),
    [
        (0.03, 0.01, 0.05, "a default"),
        (0.02, 0.001, 0.039, "a default"),  # at least 2 points
        (0.015, 0.005, 0.025, "undecided"),  # above 0, and less than 2 points
        (0.03, -0.001, 0.06, "undecided"),
        (0.005, -0.01, 0.019, "off by default"),
        (0.01, 0.005, 0.015, "off by default"),  # above 0, but within 2 points
        (0.0, -0.02, 0.02, "undecided"),  # not within
        (-0.05, -0.07, -0.03, "undecided"),
    ],
)
def test_the_rule_of_p1(mean: float, low: float, high: float, decision: str) -> None:
    assert decide(Difference(mean, low, high, 0.1, 4)) == decision


def test_the_gain_of_restarts_is_pooled_over_problems() -> None:
    found = gain([(2, 100), (4, 200)], [(1, 200), (1, 400)], "x")  # 6 / 300 over 2 / 600
    assert found.value == pytest.approx(6.0)
    assert found.low <= 6.0 <= found.high
    assert gain([(2, 100)], [(0, 200)], "x").value == math.inf
    assert math.isnan(gain([(0, 100)], [(0, 200)], "x").value)


def test_cuts_are_next_to_the_shares() -> None:
    assert cuts(range(1, 10), 10, (0.2, 0.4, 0.6, 0.8)) == (2, 4, 6, 8)
    assert cuts([1, 2, 3], 4, (0.2, 0.4, 0.6, 0.8)) is None  # 0.8, 1.6, 2.4, 3.2: the second and third are 2
    assert cuts([], 4, (0.5,)) is None


def rows() -> list[dict[str, Any]]:
    """2,400 problems of GSM8K's form, every third of two lines."""
    return [{"question": f"q{n}", "answer": "x\n" * (2 + n % 3) + "#### 1"} for n in range(2400)]


def test_no_problem_has_two_uses() -> None:
    for seed in (0, 1, 2):
        split = split_gsm8k(rows(), seed)
        uses = [{row["question"] for row in part} for part in (split.assay, split.warm, split.held_out)]
        assert [len(one) for one in uses] == [300, 1000, 326 * (seed == 0)]
        assert not uses[0] & uses[1]
        assert not uses[2] & (uses[0] | uses[1])
        assert {lines_of(row) for row in split.assay} == {LINES}
        assert {lines_of(row) for row in split.warm} == {2, 3, 4}
    first, second = split_gsm8k(rows(), 1), split_gsm8k(rows(), 2)
    assert first.assay != second.assay
    assert first == split_gsm8k(rows(), 1)


def test_mbpp_leaves_out_the_usual_test_problems() -> None:
    chosen, others = split_mbpp([{"task_id": number} for number in range(1, 975)], 1)
    ids = [row["task_id"] for row in (*chosen, *others)]
    assert len(set(ids)) == 208
    assert not set(ids) & set(USUAL_TEST)


@pytest.mark.parametrize(("part", "arm"), [(name, arm) for name, part in PARTS.items() for arm in part.arms])
def test_every_run_has_a_valid_configuration(part: str, arm: str) -> None:
    config = configuration(Run(part, arm, 1), WORK, "", {})
    check_needs(config)


def test_recipes_of_parts_replay_and_imitate() -> None:
    """An arm names what it switches off."""
    for part in ("main", "sums", "epochs", "hints", "code", "game"):
        config = configuration(Run(part, "both", 1), WORK, "", {})
        assert config.replay.ratio == 0.5
        assert config.replay.imitated > 0
        assert config.algorithm.positive_coefficient == 1


def test_arms_differ_in_what_they_name() -> None:
    for part in ("main", "sums", "epochs"):
        arms = {
            arm: configuration(Run(part, arm, 1), WORK, "", {}).model_dump()
            for arm in ("both", *(one for one in PARTS[part].arms if one != "both"))
        }
        for arm, found in arms.items():
            for name in ARMS[arm]:
                section, _, field = name.partition(".")
                found[section][field] = arms["both"][section][field]
            assert found == arms["both"], arm
    one = configuration(Run("main", "both", 3, 2e-5), WORK, "here", {})
    assert (one.model.path, one.learner.policy_lr, one.run.seed) == ("here", 2e-5, 3)
    assert str(one.task.path).endswith("data/gsm8k-3/main.jsonl")
    assert one.model.dtype == "float32"
    assert configuration(Run("assay", "mbpp", 1), WORK, "", {}).task.name == "mbpp"


def test_a_device_changes_what_its_fields_name() -> None:
    run = Run("main", "both", 1)
    plain, found = (configuration(run, WORK, "", {}, device).model_dump() for device in ("cpu", "cuda"))
    for name in ON["cuda"]:
        section, _, field = name.partition(".")
        found[section][field] = plain[section][field]
    assert found == plain
    check_options(configuration(run, WORK, "", {}, "cuda").rollout, "cuda")


def test_the_baseline_alone_is_tuned_and_all_arms_have_its_rate() -> None:
    runs = tuning_matrix("sums")
    assert {(run.arm, run.rate) for run in runs} == {("neither", rate) for rate in RATES}
    assert len({run.name for run in runs}) == len(runs)

    def _tried(rate: float, root: list[float]) -> dict[str, Any]:
        return {"run": {"arm": "neither", "rate": rate}, "iterations": {"root_success": root}}

    # the last third is the last two of six
    found = [
        _tried(RATES[0], [0, 0, 0, 0, 0.25, 0.25]),
        _tried(RATES[1], [0.9, 0, 0, 0, 0, 0.5]),
    ]
    assert best_rate(found) == RATES[0]  # as good as the other, and smaller
    assert best_rate(found[:1]) is None
    assert [run.rate for run in matrix("sums", ["both", "neither"], [1], found)] == [RATES[0], RATES[0]]
    assert [run.seed for run in matrix("sums", ["grpo", "both"], (), found) if run.arm == "grpo"] == [1, 2, 3]  # of six


def test_the_model_before_training_is_evaluated_once_for_a_seed_index() -> None:
    table = [result("both", 1, 0.5), result("both", 2, 0.25)]
    table[0]["evaluations"][0]["pass@1"] = 0.125
    assert first_evaluation(table, Run("main", "imitation", 1)) == [{"pass@1": 0.125}]
    assert first_evaluation(table, Run("main", "imitation", 3)) == []


def test_arms_of_a_seed_index_begin_from_one_file() -> None:
    table = [{"run": asdict(Run("main", "both", 1)), "model": "abc"}]
    check_model(table, Run("main", "imitation", 1), "abc")
    check_model(table, Run("main", "imitation", 2), "def")
    with pytest.raises(ConfigError, match="main-imitation-1: its warm start has the digest def, that of main-both-1"):
        check_model(table, Run("main", "imitation", 1), "def")


def test_a_run_that_another_command_performs_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    performed = list[dict[str, Any]]()
    monkeypatch.setattr("bench.real.__main__.run_child", lambda _, order, *__, **___: performed.append(order["run"]))
    runs = [Run("sums", "both", 1), Run("sums", "replay", 1)]
    taken = RunDirectory(tmp_path / f"{runs[0].name}.order")
    taken.path.mkdir()
    with taken.lock():
        perform_all(runs, tmp_path / "results", tmp_path, Way(1.0, "cpu", {}))
    assert performed == [asdict(runs[1])]
    assert "sums-replay-1: FAILED" in capsys.readouterr().out  # no result appeared
    perform_all(runs, tmp_path / "results", tmp_path, Way(1.0, "cpu", {}))
    assert performed[1] == asdict(runs[0])


def result(arm: str, seed: int, success: float) -> dict[str, Any]:
    """What the comparison reads of a run."""
    return {"run": {"part": "main", "arm": arm, "seed": seed}, "evaluations": [{"pass@1": 0.0}, {"pass@1": success}]}


def test_a_decision_waits_for_all_planned_runs() -> None:
    table = [
        result(arm, seed, at + 0.001 * seed) for arm, at in (("both", 0.1), ("imitation", 0.05)) for seed in range(1, 5)
    ]
    for row in table:
        if row["run"]["arm"] == "both":
            row["evaluations"][1]["pass@1"] += 0.002 * (row["run"]["seed"] % 2)
    lines, (check,) = comparisons("main", arms_of(table), {})
    # 5.2, 5.0, 5.2, 5.0 points: mean 5.1, deviation 0.1155, half 3.182 x 0.0577 = 0.18
    assert "| both - imitation | 5.1 (4.9 to 5.3) | 0.125 | 4 | a default |" in lines
    assert check.value == pytest.approx(5.1)
    lines, _ = comparisons("main", arms_of(table[:-1]), {})
    assert "runs are missing" in lines[2]
    other = [result(row["run"]["arm"], 5, 0.1) if row["run"]["seed"] == 4 else row for row in table]
    lines, _ = comparisons("main", arms_of(other), {})  # four, but not those that are planned
    assert "runs are missing" in lines[2]


def test_nothing_is_decided_where_nothing_was_learnt() -> None:
    """Near the floor every interval lies within 2 points of 0."""
    table = [result(arm, seed, 0.02 + 0.001 * seed) for arm in ("both", "imitation") for seed in range(1, 5)]
    lines, _ = comparisons("main", arms_of(table), {})
    assert lines[2].endswith("| none: all runs end below 6 % |")
    lines, _ = comparisons("main", arms_of([row for row in table if row["run"]["seed"] == 1]), {})  # the part ends
    assert lines[2].endswith("| none: all runs end below 6 % |")
    table[0]["evaluations"][1]["pass@1"] = 0.06
    lines, _ = comparisons("main", arms_of(table), {})
    assert "none" not in lines[2]


def test_formatting_of_one_seed() -> None:
    assert with_interval(difference([0.5], [0.0]), 100) == "50.0 (one seed)"


def test_selectors_pick_one_state_of_each_problem() -> None:
    wins = np.zeros((2, 4, 4, 4))
    wins[0, 1, 2] = 1  # one state of the first problem always succeeds
    wins[1, 3, 0, 2:] = 1  # one of the second does in half of its tries, which are those that do not choose
    values = np.zeros((2, 16))
    values[0, 6], values[1, 12] = 1.0, 1.0  # the critic knows both
    left = np.tile(1.0 - np.array(assay.DEPTHS), (2, 4))
    found = assay.precision(wins, values.ravel().tolist(), left)
    assert found["random"] == [1 / 16, 1 / 32]
    assert found["half of the tries"] == [1.0, 0.0]
    assert found["critic"] == [1.0, 0.5]
    assert set(assay.precision(wins, None, left)) == {"random", "half of the tries"}


def test_the_success_model_learns_from_the_other_problems() -> None:
    rng = np.random.default_rng(0)
    value = rng.random((40, 16))
    tries = (value[..., None] > rng.random((40, 16, 4))).astype(np.float64)
    left = np.tile(1.0 - np.array(assay.DEPTHS), (40, 4))
    chance = assay.model_chances(left, value, tries)
    assert np.corrcoef(chance.ravel(), value.ravel())[0, 1] > 0.8
    changed = tries.copy()
    changed[0] = 1 - changed[0]  # a problem's own outcomes do not count in its chances
    assert (assay.model_chances(left, value, changed)[0] == chance[0]).all()


def trained(arm: str, seed: int, *success: float) -> dict[str, Any]:
    """The result of a run with two iterations and these evaluations."""
    columns = {name: [0.25, None] for name in (*METRICS, "replayed_learnability")}
    counts = {
        "generated_tokens": [500, 500],
        "policy_steps": [2, 2],
        "trained_tokens": [900, 1100],
        "entropy": [0.5, 0.25],
    }
    return {
        "run": {"part": "sums", "arm": arm, "seed": seed},
        "machine": "a processor, 2 cores",
        "load": [0.1, 2.0 + seed],
        "model": "",
        "rate": 2e-5,
        "commit": "abc",
        "diverged": False,
        "generated": 1000,
        "evaluations": [
            {"generated": 500 * at, "pass@1": one, "pass@4": 2 * one, "lucky": [1, 4, 5]}
            for at, one in enumerate(success)
        ],
        "iterations": {**columns, **counts, "total_seconds": [10.0, 20.0]},
    }


def test_a_copy_without_a_repository_says_its_commit_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.runs.ROOT", tmp_path)
    monkeypatch.setenv("GIT_COMMIT", "abc+")
    assert commit() == "abc+"
    (tmp_path / ".git").mkdir()  # a repository, though without a commit
    assert commit() == ""


def test_a_result_counts_the_states_of_the_store_by_provenance(tmp_path: Path) -> None:
    replay = ReplayConfig()
    store = ReplayStore(replay, vocabulary=26, directory=tmp_path, fingerprint="f", local=True)
    tokens, lengths, values = np.arange(5, dtype=np.int32), np.array([1, 3], np.int32), np.zeros(2, np.float32)
    store.add([CutTrajectory("p", tokens, lengths, values, Provenance.OWN_FAILED, 0.0, 1)])
    store.add([CutTrajectory("q", tokens, lengths[:1], values[:1], Provenance.OWN_PARTIAL, 0.5, 1, share=0.5)])
    counts = store_at_the_end(store, replay, tmp_path)
    assert {kind: row["states"] for kind, row in counts.items()} == {"own_failed": 2, "own_partial": 1}


def test_the_tables_of_a_part(tmp_path: Path) -> None:
    arms = arms_of(
        [trained("both", 1, 0.1, 0.2, 0.3), trained("both", 2, 0.1, 0.2, 0.5), trained("neither", 1, 0.1, 0.2)]
    )
    assert list(arms) == ["neither", "both"]
    neither, both = page.arm_table(arms, page.MEASURES)[2:4]
    once = " | ".join(f"{number} (one seed)" for number in ("20.0", "40.0", "25.0", "0.25"))
    assert neither == f"| neither | 1 | 10.0 (one seed) | - | {once} |"
    # at the end 30 and 50: mean 40, deviation 14.14, half 12.706 x 10 = 127.1
    assert both.startswith("| both | 2 | 10.0 | 20.0 | 40.0 (-87.1 to 167.1) |")
    assert "| 4 (one seed) | 2 (one seed) |" in page.arm_table(arms, page.MORE_MEASURES)[2]  # steps, k trained tokens
    speeds = page.speed_table(arms)[2:-1]  # 30 s for 1,000 tokens
    assert speeds == [
        "| a processor, 2 cores, loaded | neither | 30.0 (one seed) | 1 |",
        "| a processor, 2 cores, loaded | both | 30.0 | 2 |",
    ]
    arms["neither"][1]["load"] = [0.1, 2.5]
    assert page.speed_table(arms)[2] == "| a processor, 2 cores | neither | 30.0 (one seed) | 1 |"
    assert page.warnings(arms)[:2] == ["Commits: abc.", ""]
    arms["neither"][1]["model"] = "other"
    assert page.warnings(arms)[1] == "**Arms of seed index 1 have different warm starts.**"
    arms["neither"][1] |= {"model": arms["both"][1]["model"], "machine": "another"}
    told = page.warnings({"imitation": arms["neither"], "both": arms["both"]})
    assert told[1] == "Pairs whose runs are of two machines, with the seed indices: both - imitation (1)."
    assert page.warnings({"imitation": arms["neither"]}, {"both": arms["both"]})[1] == told[1]
    assert page.with_interval(difference([0.1] * 3, [0.0] * 3)) == "0.1"  # their deviation is 1.7e-17
    assert page.level_measures(arms) == []
    for at, one in enumerate(arms["both"].values()):
        one["evaluations"][-1]["levels"] = {"easy": 0.25 + 0.25 * at, "hard": 0.0}
    levels = page.arm_table(arms, page.level_measures(arms))  # 25 and 50: mean 37.5, deviation 17.68, half 158.8
    assert levels[0] == "| arm | seeds | easy, % | hard, % |"
    assert levels[2:4] == ["| neither | 1 | - | - |", "| both | 2 | 37.5 (-121.3 to 196.3) | 0.0 |"]
    page.draw(arms, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def assayed() -> dict[str, Any]:
    """The result of an assay with two chosen problems: one succeeds in half of the samples, one never does."""
    one = {
        "solved": True,
        "root": [16, 1600, 4, 8],
        "own": [[6, 100, 0, 6, False]] * 4,
        "random": [[0, 100, 0, 0, True]] * 4,
        "best": [[4, 200, 1, 4, None]] * 4,
    }
    other = {
        "solved": False,
        "root": [0, 1600, 0, 0],
        "random": [[0, 100, 0, 0, False]] * 4,
        "best": [[1, 100, 1, 1, True]] * 4,
    }
    return {
        "scale": 1.0,
        "samples": 16,
        "roots": {"success": [8, 0, 0, 0], "tokens": 1000, "lucky": [2, 5, 8], "truncated": 0.0},
        "chosen": [one, other],
        "precision": {"random": [0.1, 0.3], "critic": [0.5, 0.5]},
        "critic": {"auc": [0.5, None, 0.75]},
        "stages": {"roots": {"tokens": 1000, "seconds": 60}},
    }


def test_a_wrong_state_is_compared_with_a_right_one() -> None:
    """One problem, so every bootstrap sample is the same: 2 of 2 x 8 continuations after 6 of 1 x 8."""
    states = [[2, 100, 2, 2, True], [0, 100, 0, 0, True], [6, 100, 0, 6, False], [8, 100, 0, 8, None]]
    wrong, right = page.wrong_table([{"own": states}])[2:4]
    assert wrong.startswith("| own success | wrong | 2 | 12.5 % | 0.17")
    assert right == "| own success | not wrong | 1 | 75.0 % | - | 6 of 6 |"


def test_the_section_of_an_assay() -> None:
    lines, checks = page.assay_section("gsm8k", [assayed()])
    text = "\n".join(lines)
    assert "25 % have a success (pass@16), **75 % have 0 of 16**. phi: 40 % of the 5 successes" in text
    # own: 24 / 400 over 16 / 1600 of the same problem; best: 20 / 1200 over 16 / 3200 of both
    assert "| own success | all | 1 | 24 | 6.00 (one seed) | 0 % of 24 | 0 % of 4 |" in text
    assert "| failure, by Monte-Carlo value | all | 2 | 20 | 3.33 (" in text
    assert (
        "| 40 % of 20 | 100 % of 4 |" in text
    )  # 4 x (1 + 1) wrong of 4 x (4 + 1); prefixes that cannot be told are left out
    assert "| failure, by Monte-Carlo value | 0 of 16 | 1 | 4 | no success from the root (one seed) |" in text
    assert "| failure, at random | 2.00" not in text
    # own: 4 x 6 of 4 x 8 continuations; best: 4 x 1 of 4 x 8 after a wrong text, all 4 with an error
    assert "| own success | not wrong | 4 | 75.0 % | - | 24 of 24 |" in text
    assert "| failure, by Monte-Carlo value | wrong | 4 | 12.5 % | - | 0 of 4 |" in text  # none is known to be right
    assert "| own success | wrong" not in text
    assert "AUC of the critic before each of its updates: 0.50, 0.75." in text
    assert [round(check.value, 3) for check in checks] == [0.75, 3.333]
