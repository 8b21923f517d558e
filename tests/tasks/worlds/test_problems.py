"""What environments are asked before training: prompts, and the answers in canonical solutions."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.tasks.calculator import CALCULATOR
from core.config import RolloutConfig, TaskConfig
from core.environments.protocol import digest
from core.errors import ConfigError, DataError
from core.parts.judge import Asks, Case, Judge
from core.parts.sources import roots
from core.records import EMPTY, Episode, Finish, Rollout, Start, Verdict
from tasks.dialogue.chat import Message
from tasks.judging import EpisodeJudge, Threshold, check_judge, start_judge
from tasks.kinds import judged_by_model, rollout_settings
from tasks.limits import TokenLimits
from tasks.problems import Item, Items, LeftOut, encode_problems
from tasks.synthetic.corpus import character_tokenizer
from tasks.task import build_task, step_rewards
from tasks.worlds.problems import with_worlds

CALCULATING, CALLS = "bench.tasks.calculator:calculator", "bench.tasks.calculator:Calculator"
TOKENIZER = character_tokenizer(CALCULATOR.alphabet)


def asked(items: list[Item], environment: str = CALLS, canonical: bool = True, **options: Any) -> list[Item]:
    settings = RolloutConfig(environment=environment, environment_options=options)
    given = Items(items, items[:1], LeftOut(), sets=items[:1])
    found = with_worlds(given, "calculator", settings, TOKENIZER, canonical)
    assert found.evaluation == found.sets == found.train[:1]
    return found.train


def test_no_state_of_a_canonical_solution_is_inside_an_answer() -> None:
    right, wrong = CALCULATOR.item("12*7"), CALCULATOR.item("6+4")
    items = asked([right, replace(wrong, solution="[6+4=11]\n#11"), replace(right, prompt="x\n", solution=None)])
    assert [item.solution for item in items] == ["[12*7=84]\n#84", None, None]  # the second is not what is answered
    limits = TokenLimits(8, 32)
    given = Items(items[:1], items[:1], LeftOut())
    split, _ = encode_problems(TaskConfig(name=CALCULATING), TOKENIZER, given, limits, 64)
    (problem,) = split.train
    assert problem.world is not None
    assert (problem.world.id, problem.world.reference, problem.world.opening) == (problem.id, "12*7", digest([]))
    (start,) = roots([problem], 1, 0)
    assert start.world == problem.world
    assert problem.solution_ids is not None
    tokens, zeros = problem.solution_ids, np.zeros(problem.solution_ids.size, np.int32)
    rollout = Rollout(start, 0, tokens, zeros.astype(np.float32), zeros, Finish.STOP, problem.solution_mask)
    every = rollout.states(lambda response: np.arange(1, len(response), dtype=np.int32))
    assert every.tolist() == [1, 2, 3, 4, 5, 10, 11, 12, 13]  # not 6 (before the answer 84]\n) to 9
    assert rollout.states(lambda _: EMPTY).tolist() == [10]
    assert asked([right], canonical=False)[0].solution_mask is None


def test_what_an_environment_says_first_is_the_prompt() -> None:
    items = [Item(f"Problem {number}", "") for number in range(300)]
    found = asked(items, "tests.environments:Counter", canonical=False)
    assert [item.messages for item in found] == [
        (Message("system", "Count."), Message("user", item.prompt)) for item in items
    ]
    assert len({item.world.opening for item in found if item.world}) == 300


def test_an_environment_that_cannot_begin_is_named_with_its_problem() -> None:
    item = Item("Go", "", where="games.jsonl: row 1")
    wrong = (
        r"rollout\.environment 'tests\.environments:Bad': games\.jsonl: row 1: reset raised ValueError: no such game"
    )
    with pytest.raises(ConfigError, match=wrong):
        asked([item], "tests.environments:Bad", where="reset")


def test_a_task_that_its_environment_judges() -> None:
    from core.load import parse_config

    recipe = parse_config({"task": {"name": "environment", "path": "rows.jsonl"}}, "test")
    with pytest.raises(ConfigError, match=r"task\.name 'environment'.* rollout"):
        rollout_settings(recipe.rollout, recipe.task)
    assert rollout_settings(RolloutConfig(), TaskConfig(name=CALCULATING)).environment == CALLS
    assert not judged_by_model(recipe.task)
    judge = start_judge(recipe.task)
    assert isinstance(judge, EpisodeJudge)
    assert check_judge(recipe.task, []) == "judge: the environment"


def trajectory(episode: Episode) -> Rollout:
    """Four tokens of the policy, an answer of one after the second."""
    start = Start("s", "p", np.zeros(1, np.int32), np.zeros(0, np.int32), 1, 0)
    mask = np.array([1, 1, 0, 1, 1], np.bool_)
    zeros = np.zeros(5, np.int32)
    return Rollout(start, 0, zeros, zeros.astype(np.float32), zeros, Finish.STOP, mask, episode)


def case(one: Rollout) -> Case:
    return Case("", "", episode=one.episode, tokens=one.tokens.size)


def test_what_counts_as_a_success_may_be_a_reward() -> None:
    """Of an episode all its rewards count; where the judge failed, none do."""
    judge = Threshold(EpisodeJudge(), 1.25)
    for total, succeeded in ((1.25, True), (1.2, False)):
        (verdict,) = judge.judge([case(trajectory(Episode(((4, 1.0),), total, 2, not succeeded)))])
        assert (verdict.reward, verdict.correct) == (1.0, succeeded)
    assert not Threshold(EpisodeJudge(), -1.0).judge([Case("", "")])[0].correct
    half = SimpleNamespace(asks=Asks(), judge=lambda cases: [Verdict(0.5, False, steps=((1, 0.25),))] * len(cases))
    for total, succeeded in ((0.5, True), (0.4, False)):  # a judge beside the environment: both are added
        (verdict,) = Threshold(cast(Judge, half), 1.25).judge(
            [case(trajectory(Episode(((4, total),), total, 2, False)))]
        )
        assert verdict.correct == succeeded
    task = TaskConfig(name="gsm8k", judge_workers=0)
    for least, right in ((None, True), (1.0, True), (1.5, False)):
        judge_ = start_judge(task.model_copy(update={"success_reward": least}))
        assert [one.correct for one in judge_.judge([Case("2", "#### 2"), Case("2", "#### 3")])] == [right, False]


def test_the_rewards_of_turns() -> None:
    """0.25 after the second token, 1 at the end: the verdict has the last one, or a judge of the text has both added."""
    judge = EpisodeJudge()
    for correct, succeeded in ((None, True), (False, False)):
        (verdict,) = judge.judge([case(trajectory(Episode(((1, 0.25), (4, 1.0)), 1.25, 2, correct, "why")))])
        assert verdict == Verdict(1.0, succeeded, "why")
    cut = trajectory(Episode(((1, 0.0),), 0.0, 1))
    assert judge.judge([case(cut), Case("", "")]) == [
        Verdict(0.0, False),
        Verdict(0.0, False, "no environment answered", judge_failed=True),
    ]

    one, none = trajectory(Episode(((1, 0.25), (4, 1.0)), 1.25, 2)), Verdict(1.0, True)
    alone, added = (step_rewards(one, none, str, by_world) for by_world in (True, False))
    assert alone is not None
    assert added is not None
    assert (alone.tolist(), added.tolist()) == ([0, 0.25, 0, 0, 0], [0, 0.25, 0, 0, 1])
    assert step_rewards(cut, none, str) is None


def test_a_task_with_an_environment_judges_text_and_turns() -> None:
    config = TaskConfig(name=CALCULATING, problems=2, eval_problems=1, operations=(1, 1), judge_workers=0)
    settings = RolloutConfig(environment=CALLS)
    task = build_task(config, TOKENIZER, limits=TokenLimits(8, 32), context=64, seed=0, rollout=settings)
    (start,) = roots(task.train[:1], 1, 0)
    solution = task.train[0].solution_ids
    assert solution is not None
    size = solution.size
    zeros = np.zeros(size, np.float32)
    episode = Episode(((5, 0.5), (size - 1, 0.0)), 0.5, 2)
    one = Rollout(start, 0, solution, zeros, zeros.astype(np.int32), Finish.STOP, None, episode)
    (judged,) = task.judge([one])
    assert judged.verdict.correct
    assert judged.step_rewards is not None
    assert judged.step_rewards.sum() == 0.5
    assert judged.reward == 0.5 + judged.verdict.reward
    task.close()


def test_worlds_that_begin_with_the_same_words_are_other_problems() -> None:
    """Training and evaluation are kept apart by what environments are reset with."""
    config = TaskConfig(name=CALCULATING, problems=4, eval_problems=2, operations=(1, 1), judge_workers=0)
    settings = RolloutConfig(environment="tests.environments:Bad", environment_options={"where": "rules"})
    task = build_task(config, TOKENIZER, limits=TokenLimits(8, 32), context=64, seed=0, rollout=settings)
    assert len({problem.prompt_ids.tobytes() for problem in (*task.train, *task.evaluation)}) == 1
    read = TOKENIZER.decode(task.train[0].prompt_ids.tolist())
    assert (task.first_prompt(""), task.train[0].question) == (read, read)  # and not the row
    task.check_starts(roots(task.train, 1, 0))
    with pytest.raises(DataError, match="evaluation problem"):
        task.check_starts(roots(task.evaluation, 1, 0))
    task.close()
