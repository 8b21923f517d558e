"""The pure parts of `bench.real`: splits, arms, tables worked out by hand, and the rule of decision."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.options import check_options
from bench.real import assay, assay_page, page
from bench.real.page import comparisons, decide
from bench.real.plan import ARMS, ON, PARTS, RATES, best_rate, configuration, matrix, tuning_matrix
from bench.real.run import first_evaluation, schedule_of, store_at_the_end
from bench.real.splits import MOST, USUAL_TEST, hard, held_out_mbpp, split_mbpp, successes
from bench.runs import Run, append_line, arms_of
from bench.statistics import Difference
from bench.training import METRICS
from core.config import ReplayConfig
from core.errors import ConfigError
from core.records import Provenance
from replay.store.store import ReplayStore
from tests.replay.made import states
from trainer.model.needs import check_needs

WORK = Path("runs/real")


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


def test_cuts_are_next_to_the_shares() -> None:
    assert assay.cuts(range(1, 10), 10, (0.2, 0.4, 0.6, 0.8)) == (2, 4, 6, 8)
    assert assay.cuts([1, 2, 3], 4, (0.2, 0.4, 0.6, 0.8)) is None  # 0.8, 1.6, 2.4, 3.2: the second and third are 2
    assert assay.cuts([], 4, (0.5,)) is None


def test_no_problem_of_mbpp_has_two_uses() -> None:
    rows = [{"task_id": number} for number in range(1, 975)]
    chosen, others = split_mbpp(rows, 1)
    ids = [row["task_id"] for row in (*chosen, *others)]
    assert len(set(ids)) == 208
    assert not set(ids) & set(USUAL_TEST)
    assert sorted(row["task_id"] for row in held_out_mbpp(rows)) == list(USUAL_TEST)
    assert chosen != split_mbpp(rows, 2)[0]


def test_programs_are_trained_that_the_assay_hardly_ever_solves(tmp_path: Path) -> None:
    table = tmp_path / "code_assay.jsonl"
    append_line(
        table, {"run": {"part": "code_assay", "arm": "mbpp", "seed": 1}, "roots": {"success": [0, MOST, MOST + 1]}}
    )
    rows = [{"task_id": at} for at in range(3)]
    assert hard(rows, successes(table, 1)) == rows[:2]
    with pytest.raises(ConfigError, match="--seeds 2"):
        successes(table, 2)
    config = configuration(Run("code", "ppo", 2), WORK, {})
    assert str(config.task.path).endswith("data/mbpp-2/code.jsonl")
    assert config.task.code.reward == "share"
    assert (config.rollout.threads, config.learner.threads) == (2, 2)


@pytest.mark.parametrize(("part", "arm"), [(name, arm) for name, part in PARTS.items() for arm in part.arms])
def test_every_run_has_a_valid_configuration(part: str, arm: str) -> None:
    config = configuration(Run(part, arm, 1), WORK, {})
    check_needs(config)


def test_recipes_of_parts_replay_and_imitate() -> None:
    """An arm names what it switches off."""
    config = configuration(Run("sums", "both", 1), WORK, {})
    assert config.replay.ratio == 0.5
    assert config.replay.imitated > 0
    assert config.algorithm.positive_coefficient == 1


def test_arms_differ_in_what_they_name() -> None:
    for part, first in (("sums", "both"), ("code", "ppo")):
        arms = {
            arm: configuration(Run(part, arm, 1), WORK, {}).model_dump()
            for arm in (first, *(one for one in PARTS[part].arms if one != first))
        }
        for arm, found in arms.items():
            for name in ARMS[arm]:
                section, _, field = name.partition(".")
                found[section][field] = arms[first][section][field]
            assert found == arms[first], arm
    one = configuration(Run("sums", "both", 3, 2e-5), WORK, {})
    assert (one.learner.policy_lr, one.run.seed, one.model.dtype) == (2e-5, 3, "float32")


def test_a_device_changes_what_its_fields_name() -> None:
    run = Run("sums", "both", 1)
    plain, found = (configuration(run, WORK, {}, device).model_dump() for device in ("cpu", "cuda"))
    for name in ON["cuda"]:
        section, _, field = name.partition(".")
        found[section][field] = plain[section][field]
    assert found == plain
    check_options(configuration(run, WORK, {}, "cuda").rollout, "cuda")


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
    assert first_evaluation(table, Run("sums", "imitation", 1), "m") == [{"pass@1": 0.125}]
    assert first_evaluation(table, Run("sums", "imitation", 3), "m") == []
    assert first_evaluation(table, Run("code", "imitate", 1), "m") == []  # HumanEval is not among its sets
    table[0]["model"] = "another"
    assert first_evaluation(table, Run("sums", "imitation", 1), "m") == []


def result(arm: str, seed: int, success: float) -> dict[str, Any]:
    """What the comparison reads of a run."""
    return {
        "run": {"part": "sums", "arm": arm, "seed": seed},
        "evaluations": [{"pass@1": 0.0}, {"pass@1": success}],
        "iterations": {"root_success": [0.0, success]},
    }


def test_a_decision_waits_for_all_planned_runs() -> None:
    table = [result(arm, seed, at) for arm, at in (("both", 0.1), ("imitation", 0.05)) for seed in range(1, 7)]
    for row in table[:3]:
        row["evaluations"][1]["pass@1"] += 0.002
    lines, (check,) = comparisons("sums", arms_of(table, ARMS))
    # 5.2 three times and 5.0 three times: mean 5.1, deviation 0.1095, half 2.571 x 0.0447 = 0.11
    assert check.value == pytest.approx(5.1)
    assert "| both - imitation | 5.1 (5.0 to 5.2) | 0.031 | 2.5 | 6 | a default |" in lines
    lines, _ = comparisons("sums", arms_of(table[:-1], ARMS))
    assert "runs are missing" in lines[2]
    other = [result(row["run"]["arm"], 7, 0.1) if row["run"]["seed"] == 6 else row for row in table]
    lines, _ = comparisons("sums", arms_of(other, ARMS))  # six, but not those that are planned
    assert "runs are missing" in lines[2]


def test_nothing_is_decided_where_nothing_was_learnt() -> None:
    """Near the floor every interval lies within 2 points of 0."""
    table = [result(arm, seed, 0.02 + 0.001 * seed) for arm in ("both", "imitation") for seed in range(1, 7)]
    lines, _ = comparisons("sums", arms_of(table, ARMS))
    assert lines[2].endswith("| none: all runs end below 6 % |")
    lines, _ = comparisons("sums", arms_of([row for row in table if row["run"]["seed"] == 1], ARMS))  # the part ends
    assert lines[2].endswith("| none: all runs end below 6 % |")
    table[0]["evaluations"][1]["pass@1"] = 0.06
    lines, _ = comparisons("sums", arms_of(table, ARMS))
    assert "none" not in lines[2]


def test_a_tuning_run_has_half_of_the_budget_and_no_evaluation() -> None:
    tuning, usual = schedule_of(Run("sums", "neither", 0, 5e-6), 1.0), schedule_of(Run("sums", "neither", 1), 1.0)
    assert (tuning.budget, tuning.points, tuning.last_samples) == (usual.budget // 2, 0, 0)


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
        "rate": 2e-5,
        "commit": "abc",
        "diverged": False,
        "generated": 1000,
        "evaluations": [{"generated": 500 * at, "pass@1": one, "pass@4": 2 * one} for at, one in enumerate(success)],
        "iterations": {**columns, **counts, "seconds": [10.0, 20.0]},
    }


def test_a_result_counts_the_states_of_the_store_by_provenance(tmp_path: Path) -> None:
    replay = ReplayConfig()
    store = ReplayStore(replay, vocabulary=26, directory=tmp_path, fingerprint="f", local=True)
    tokens, lengths, values = np.arange(5, dtype=np.int32), np.array([1, 3], np.int32), np.zeros(2, np.float32)
    failed = states("p", tokens, lengths, values)
    store.add([failed, states("q", tokens, lengths[:1], values[:1], Provenance.OWN_PARTIAL)], 1)
    store.save(tmp_path / "replay")
    counts = store_at_the_end(replay, tmp_path / "replay")
    assert store_at_the_end(replay, tmp_path / "absent") == {}
    assert {kind: row["states"] for kind, row in counts.items()} == {"own_failed": 2, "own_partial": 1}


def test_the_tables_of_a_part(tmp_path: Path) -> None:
    arms = arms_of([trained("both", 1, 0.1, 0.3), trained("both", 2, 0.1, 0.5), trained("neither", 1, 0.1, 0.2)], ARMS)
    assert list(arms) == ["neither", "both"]
    found = {title: scale * of(arms["neither"][1]) for title, of, scale, _ in page.MEASURES}
    assert found["at the end, %"] == pytest.approx(20.0)
    assert found["optimizer steps"] == 4
    assert found["trained tokens, k"] == 2
    # at the end 30 and 50: mean 40, deviation 14.14, half 12.706 x 10 = 127.1
    assert "| 40.0 (-87.1 to 167.1) |" in page.arm_table(arms, page.MEASURES)[3]
    assert page.seconds(arms["neither"][1]) == 30.0  # 30 s for 1,000 tokens
    assert all("loaded" in line for line in page.speed_table(arms)[2:4])
    arms["neither"][1]["load"] = [0.1, 2.5]
    assert "loaded" not in page.speed_table(arms)[2]
    arms["neither"][1]["threads"] = 2
    assert page.speed_table(arms)[2].startswith("| a processor, 2 cores, 2 threads | neither |")
    assert page.warnings(arms) == ["Commits: abc.", ""]
    arms["neither"][1] |= {"machine": "another"}
    assert "both - imitation (1)" in page.warnings({"imitation": arms["neither"], "both": arms["both"]})[1]
    assert page.level_measures(arms) == []
    for at, one in enumerate(arms["both"].values()):
        one["evaluations"][-1]["levels"] = {"easy": 0.25 + 0.25 * at, "hard": 0.0}
    levels = page.arm_table(arms, page.level_measures(arms))  # 25 and 50: mean 37.5, deviation 17.68, half 158.8
    assert levels[2:4] == ["| neither | 1 | - | - |", "| both | 2 | 37.5 (-121.3 to 196.3) | 0.0 |"]
    assert page.set_measures(arms) == []
    arms["neither"][1]["evaluations"][-1]["sets"] = {"humaneval": {"greedy": 0.25}}
    sets = page.arm_table(arms, page.set_measures(arms))
    assert sets[0] == "| arm | seeds | humaneval greedy, % |"
    assert sets[2:4] == ["| neither | 1 | 25.0 (one seed) |", "| both | 2 | - |"]
    assert page.cell([0.25, math.nan, 0.25], 100, 0) == "25, 2 seeds"
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
        "stages": {"roots": {"tokens": 1000, "seconds": 60}},
    }


def test_a_wrong_state_is_compared_with_a_right_one() -> None:
    """One problem, so every bootstrap sample is the same: 2 of 2 x 8 continuations after 6 of 1 x 8."""
    states = [[2, 100, 2, 2, True], [0, 100, 0, 0, True], [6, 100, 0, 6, False], [8, 100, 0, 8, None]]
    wrong, right = assay_page.wrong_table([{"own": states}])[2:4]
    assert wrong.startswith("| own success | wrong | 2 | 12.5 % | 0.17")
    assert right == "| own success | not wrong | 1 | 75.0 % | - | 6 of 6 |"


def test_the_section_of_an_assay() -> None:
    lines, checks = assay_page.assay_section("mbpp", [assayed()])
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
    assert [round(check.value, 3) for check in checks] == [0.75, 3.333]
