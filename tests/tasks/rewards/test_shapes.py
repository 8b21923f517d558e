"""Rewards of TRL, of verl and of our own shape, in their judging processes."""

import time
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from core.config import TaskConfig
from core.errors import ConfigError, DataError
from core.load import parse_config
from core.parts.judge import Asks, Case
from core.records import Verdict
from tasks.judge_pool import JudgePool
from tasks.judge_worker import judge_cases, judge_one
from tasks.judging import start_judge
from tasks.problems import Item
from tasks.rewards.shapes import read_shape

HERE = "tests.tasks.rewards.published"


def judged(names: Any, cases: Sequence[Case], **settings: Any) -> list[Verdict]:
    """Verdicts of one reward, or of several with (name, weight)."""
    given: dict[str, Any] = {"reward": f"{HERE}:{names}"}
    if not isinstance(names, str):
        given = {"rewards": [{"name": name, "weight": weight} for name, weight in names]}
    config = TaskConfig.model_validate({"name": "gsm8k", "judge_timeout": 60.0} | given | settings)
    with closing(start_judge(config)) as judges:
        return judges.judge(cases)


def rewards(names: Any, cases: Sequence[Case], **settings: Any) -> list[float]:
    return [verdict.reward for verdict in judged(names, cases, **settings)]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_examples_of_trl_run_unchanged(workers: int) -> None:
    said = [Case("", r"The solution is \boxed{2}.", columns={"prompt": "2x + 3 = 7", "ground_truth": "2"}, ids=[1, 2])]
    said += [Case("", r"The solution is \boxed{6}.", columns={"prompt": "3x - 5 = 10", "ground_truth": "5"}, ids=[3])]
    assert rewards("boxed", said, judge_workers=workers) == [1.0, 0.0]
    assert rewards("longer_completions", said, judge_workers=workers) == [2.0, 1.0]
    assert rewards("async_reward_func", [*said, Case("", "")], judge_workers=workers) == [1.0, 1.0, 0.0]
    chat = {"prompt": [{"role": "user", "content": "What is (1 + 2) * 4?"}]}
    thought = [Case("", "<think>3 * 4</think><answer>12</answer>", columns=chat), Case("", "12", columns=chat)]
    assert rewards("format_reward_func", thought, judge_workers=workers) == [1.0, 0.0]


def test_the_score_of_verl_runs_unchanged() -> None:
    row = {"data_source": "openai/gsm8k", "reward_model": {"style": "rule", "ground_truth": "72"}}
    row["extra_info"] = {"split": "train", "index": 0}
    right, wrong, none = judged(
        "compute_score", [Case("", f"{text}", columns=row) for text in ("#### 72", "#### 7", "72")]
    )
    assert (right.reward, right.correct) == (1.0, True)
    assert (wrong.reward, wrong.correct) == (0.1, False)  # by `acc`
    assert (none.reward, none.correct, none.judge_failed) == (0.0, False, False)
    (other,) = judged("compute_score", [Case("72", "#### 72", "a.parquet: row 3", {"data_source": "x"})])
    assert "NotImplementedError" in other.detail
    assert other.detail.endswith(", on a.parquet: row 3")


def test_a_batch_is_all_that_a_process_judges_at_once() -> None:
    cases = [Case("", f"{number}") for number in range(150)]
    assert set(rewards("size_of_the_batch", cases)) == {150.0}
    assert set(rewards("size_of_the_batch", cases, judge_workers=2)) == {75.0}


def test_our_shape_takes_the_prompt_and_columns() -> None:
    cases = [
        Case("4", "4", columns={"prompt": "2+2", "level": 3}),
        Case("4", "2+2=4", columns={"prompt": "2+2", "level": 3}),
    ]
    assert rewards("with_prompt", cases) == [3.0, 0.5]
    with closing(JudgePool(f"{HERE}:with_default", workers=1, limit=60.0, memory_gib=0.0)) as pool:
        assert [verdict.reward for verdict in pool.judge([Case("4", "4"), Case("4", "5")])] == [
            0.5,
            0.0,
        ]  # a task's own judge
    assert [verdict.correct for verdict in judged("by_name", [Case("4", "4!"), Case("4!", "4")])] == [True, False]


def test_names_tell_the_gold_answer_from_the_response() -> None:
    assert [verdict.correct for verdict in judged("other_names", [Case("4", "4!"), Case("4!", "4")])] == [True, False]
    (verdict,) = judged("synonym_as_column", [Case("4", "5", columns={"answer": "of the row"})])
    assert verdict.correct


def test_async_rewards_are_awaited_together_and_one_that_hangs_is_named() -> None:
    cases = [Case("a", "a"), *[Case("a", "b")] * 60, Case("", "slow", "rows.jsonl: row 9")]
    config = TaskConfig(name="gsm8k", reward=f"{HERE}:waits", judge_timeout=0.2)  # 2 s on the wall clock
    with closing(start_judge(config)) as judges:
        begun = time.monotonic()
        first, *others, slow = judges.judge(cases)
        assert time.monotonic() - begun < 12  # 14 s one after the other
    assert (first.reward, {other.reward for other in others}) == (1.0, {0.0})
    assert slow.detail == "judge raised TimeoutError: no reward after 2 s, on rows.jsonl: row 9"
    assert slow.judge_failed


def test_in_a_batch_only_the_row_at_fault_fails_and_is_named() -> None:
    cases = [
        Case("", text, f"rows.jsonl: row {row}") for row, text in enumerate(("abc", "bad", "slow", "die", "ab"), 1)
    ]
    config = TaskConfig(name="gsm8k", reward=f"{HERE}:stumbles", judge_timeout=0.2)
    with closing(start_judge(config)) as judges:
        found = judges.judge(cases)
        assert [verdict.reward for verdict in judges.judge(cases[::4])] == [3.0, 2.0]  # by a new process
    assert [verdict.reward for verdict in found] == [3.0, 0.0, 0.0, 0.0, 2.0]
    assert [verdict.judge_failed for verdict in found] == [False, True, True, True, False]
    assert found[1].detail.startswith("judge raised ValueError: bad (published.py, line ")
    assert found[1].detail.endswith("), on rows.jsonl: row 2")
    assert found[2].detail == "judge timed out after 2 s, on rows.jsonl: row 3"
    assert found[3].detail == "judge crashed: exit status 7, on rows.jsonl: row 4"
    (few, _) = judged("too_few", [Case("", "a"), Case("", "b")])
    assert few.reward == 1.0  # asked again for each
    assert "1 rewards for 2" not in few.detail


def test_the_weighted_sum_counts_and_none_leaves_it_to_the_others() -> None:
    several = [(f"{HERE}:math_reward_func", 2.0), (f"{HERE}:by_name", 0.5)]
    rows = [
        ("What is 2+2?", "math", "4"),
        ("What is 2+2?", "math", "5"),
        ("Sing.", "song", "la!"),
        ("Sing.", "song", "l"),
    ]
    cases = [Case("la", text, columns={"prompt": prompt, "task": task}) for prompt, task, text in rows]
    right, wrong, sung, not_sung = judged(several, cases)
    assert (right.reward, right.correct) == (2 * 1.0 + 0.5 * 0.0, True)  # the first that applies says what is correct
    assert (wrong.reward, wrong.correct) == (2 * -1.0, False)
    assert (sung.reward, sung.correct, sung.parts) == (0.5, True, (("by_name", 1.0),))
    assert (not_sung.reward, not_sung.correct) == (0.0, False)
    assert right.parts == (("math_reward_func", 1.0), ("by_name", 0.0))
    (nobody,) = judged("math_reward_func", [Case("", "la", "r: row 1", {"prompt": "Sing.", "task": "song"})])
    assert (nobody.detail, nobody.judge_failed) == ("no reward applies, on r: row 1", True)


def test_the_tasks_own_judge_may_be_one_of_several() -> None:
    several = [("task", 1.0), (f"{HERE}:async_reward_func", 0.1)]
    right, wrong, silent = judged(several, [Case("7", "#### 7"), Case("7", "#### 8"), Case("7", "")])
    assert right.reward == pytest.approx(1.1)
    assert (wrong.reward, wrong.correct) == (0.1, False)
    assert wrong.detail == "task: answered '8', expected '7'"
    assert (silent.reward, silent.parts) == (0.0, (("task", 0.0), ("async_reward_func", 0.0)))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("unknown", "takes (text: str); name a function of (reference, response), by these names"),
        ("prompt_first", "takes (prompt: str, "),
        ("two_references", "takes (answer: str, ground_truth: str); name a function of (reference, response)"),
        ("by_place", "takes (*texts: str); name a function of (reference, response)"),
    ],
)
def test_unknown_parameters_are_refused_with_the_shapes(name: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        judged(name, [])
    assert f"task.reward: judge cannot start: verifier '{HERE}:{name}' {told}" in str(caught.value)
    assert "TRL's (prompts, completions, completion_ids, **columns)" in str(caught.value)
    assert "verl's (data_source, solution_str, ground_truth, extra_info)" in str(caught.value)


def test_two_fields_or_two_equal_names_are_refused() -> None:
    for task in ({"reward": "a:b", "rewards": [{"name": "a:b"}]}, {"rewards": [{"name": "a:b"}, {"name": "c:b"}]}):
        with pytest.raises(ConfigError, match=r"task\.reward"):
            parse_config({"task": task}, "test")


def test_only_the_columns_asked_for_are_kept() -> None:
    row = {"prompt": "p", "answer": "a", "level": 3, "text": "x" * 1000}
    item = Item("p", "a", where="r: row 1", row=row)
    assert item.kept(Asks(["level"], ["prompt", "bonus"])) == {"level": 3, "prompt": "p"}
    assert item.kept(Asks(every_column=True)) == row
    with pytest.raises(DataError, match=r"r: row 1 .*'levels' .*task\.reward.*'level'"):
        item.kept(Asks(["levels"]))


@pytest.mark.parametrize(
    ("given", "reward"),
    [
        (np.isclose(1.0, 1.0), 1.0),
        (np.False_, 0.0),
        (np.float32(0.5), 0.5),
        (np.float16(-2.0), -2.0),
        (np.int64(3), 3.0),
        (np.uint8(1), 1.0),
        (np.array(0.25), 0.25),
        (np.array([[0.25]]), 0.25),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([True]), 1.0),
        (torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), 0.5),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
    ],
)
def test_numbers_of_other_libraries_are_numbers_in_every_shape(given: Any, reward: float) -> None:
    def ours(reference: str, response: str) -> Any:
        return given

    def verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> Any:
        return given

    def verl_mapping(data_source: str, solution_str: str, ground_truth: str) -> Any:
        return {"score": given, "acc": np.bool_(reward > 0)}

    def trl(completions: list[str], **_: Any) -> Any:
        return [given]

    for function in (ours, verl, verl_mapping, trl):
        (verdict,) = judge_cases(read_shape(function, "mine:reward"), [Case("", "x")], -9.0)
        assert (verdict.reward, verdict.correct, verdict.judge_failed) == (reward, reward > 0, False), function.__name__


@pytest.mark.parametrize("given", [np.array([1.0, 2.0]), torch.ones(2), "1.0", 1j, np.complex64(1), np.nan, None, [1]])
def test_what_is_no_number_fails_with_a_reason(given: Any) -> None:
    verdict = judge_one(lambda: given, -9.0)
    assert (verdict.reward, verdict.judge_failed) == (-9.0, True)
    assert verdict.detail
